"""FedNest and FedMSA in torch, client by client: what round_speed.py compares with.

This is not the authors' program. It is written from the pseudo-code of the papers
(arXiv:2205.02215 and arXiv:2306.01648) in the way that their programs work: one client after
another, one local step after another, gradients by ``autograd.grad`` and second derivatives by
``autograd.grad`` of a gradient. Rows are tensors in memory before the clock starts, and batches are
taken by an index, so no data loader is timed.

It needs torch alone and reads requests from standard input, one per line: the name of a task and a
number of rounds. It answers with the CPU seconds of one of these rounds. Torch has one thread:
more of them spin while they wait, which costs CPU seconds and would flatter whoever is compared.
"""

import itertools
import json
import sys
import time
from dataclasses import dataclass

import torch  # pyright: ignore[reportMissingImports]
from torch.nn.functional import (  # pyright: ignore[reportMissingImports]
    cross_entropy,
    linear,
    relu,
)

CLIENTS, INPUTS, CLASSES = 100, 784, 10


@dataclass
class Config:
    """The sizes of a task; round_speed.py sends them, so that both sides have the same."""

    sizes: list[int]
    train: int
    validation: int
    cohort: int
    batch: int
    inner_rounds: int = 0
    inner_steps: int = 0
    terms: int = 0
    local_steps: int = 0
    l2: float = 0.01
    lipschitz: float = 20.0


class Rows:
    """The rows of a split, one tensor per client."""

    def __init__(self, n: int, seed: int):
        random = torch.Generator().manual_seed(seed)
        self.inputs = [torch.randn(n, INPUTS, generator=random) for _ in range(CLIENTS)]
        self.labels = [torch.randint(CLASSES, (n,), generator=random) for _ in range(CLIENTS)]
        self.n = n

    def all(self, client: int):
        """All rows of a client."""
        return self.inputs[client], self.labels[client]

    def draw(self, client: int, size: int):
        """Some rows with replacement, or all if there are no more."""
        if size >= self.n:
            return self.all(client)
        index = torch.randint(self.n, (size,))
        return self.inputs[client][index], self.labels[client][index]


def layers(sizes: list[int]) -> list[torch.Tensor]:
    made = []
    for n_in, n_out in itertools.pairwise(sizes):
        made += [torch.randn(n_out, n_in) / n_in**0.5, torch.zeros(n_out)]
    return made


def network(parameters: list[torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    for i in range(0, len(parameters) - 2, 2):
        inputs = relu(linear(inputs, parameters[i], parameters[i + 1]))
    return linear(inputs, parameters[-2], parameters[-1])


class HyperRepresentation:
    """x is the hidden layer, y the head with a ridge."""

    def __init__(self, config: Config):
        both = layers(config.sizes)
        self.x, self.y, self.l2 = both[:2], both[2:], config.l2

    def inner(self, x, y, rows):
        """The mean inner loss."""
        ridge = sum((leaf * leaf).sum() for leaf in y) / 2
        return cross_entropy(network([*x, *y], rows[0]), rows[1]) + self.l2 * ridge

    def outer(self, x, y, rows):
        """The mean outer loss."""
        return cross_entropy(network([*x, *y], rows[0]), rows[1])


class LossTuning:
    """x are two numbers per class, y is the network."""

    def __init__(self, config: Config):
        self.x, self.y = [torch.zeros(CLASSES), torch.zeros(CLASSES)], layers(config.sizes)
        self.l2, self.weights = config.l2, torch.ones(CLASSES) / CLASSES**0.5

    def inner(self, x, y, rows):
        """The mean inner loss."""
        ridge = sum((leaf * leaf).sum() for leaf in y) / 2
        logits = torch.sigmoid(x[0]) * network(y, rows[0]) + x[1]
        return cross_entropy(logits, rows[1]) + self.l2 * ridge

    def outer(self, x, y, rows):
        """The mean outer loss."""
        each = cross_entropy(network(y, rows[0]), rows[1], reduction="none")
        return (self.weights[rows[1]] * each).mean()


def variables(values):
    return [leaf.detach().requires_grad_() for leaf in values]


def mean(trees):
    return [torch.stack(leaves).mean(0) for leaves in zip(*trees, strict=True)]


def inner_gradient(task, x, y, rows):
    y = variables(y)
    return torch.autograd.grad(task.inner(x, y, rows), y)


def outer_gradient(task, x, y, rows):
    """f_x, zeros where the loss does not depend on x, and f_y."""
    x, y = variables(x), variables(y)
    found = torch.autograd.grad(task.outer(x, y, rows), [*x, *y], allow_unused=True)
    found = [
        torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, [*x, *y], strict=True)
    ]
    return found[: len(x)], found[len(x) :]


def outer_gradient_y(task, x, y, rows):
    y = variables(y)
    return torch.autograd.grad(task.outer(x, y, rows), y)


def second(task, x, y, v, rows):
    """g_y, g_xy v and g_yy v: one gradient, and the gradient of its product with v."""
    x, y = variables(x), variables(y)
    gradient = torch.autograd.grad(task.inner(x, y, rows), y, create_graph=True)
    product = sum((g * p).sum() for g, p in zip(gradient, v, strict=True))
    found = torch.autograd.grad(product, [*x, *y])
    return [g.detach() for g in gradient], found[: len(x)], found[len(x) :]


def hessian_vector(task, x, y, v, rows):
    y = variables(y)
    gradient = torch.autograd.grad(task.inner(x, y, rows), y, create_graph=True)
    product = sum((g * p).sum() for g, p in zip(gradient, v, strict=True))
    return torch.autograd.grad(product, y)


def cross(task, x, y, v, rows):
    x, y = variables(x), variables(y)
    gradient = torch.autograd.grad(task.inner(x, y, rows), y, create_graph=True)
    product = sum((g * p).sum() for g, p in zip(gradient, v, strict=True))
    return torch.autograd.grad(product, x)


class FedNest:
    """A round: FedInn T times, FedIHGP with N hops, FedOut with one local step."""

    def __init__(self, task, config: Config):
        self.task, self.config = task, config
        self.train, self.validation = Rows(config.train, 0), Rows(config.validation, 1)

    def cohort(self):
        """Clients drawn without replacement."""
        return torch.randperm(CLIENTS)[: self.config.cohort].tolist()

    def round(self) -> None:
        """One round."""
        task, config = self.task, self.config
        for _ in range(config.inner_rounds):
            task.y = self.fedinn()
        x, y, L = task.x, task.y, config.lipschitz

        def right_side(client):
            rows = self.validation.draw(client, config.batch)
            return outer_gradient_y(task, x, y, rows)

        term = [g / L for g in mean([right_side(client) for client in self.cohort()])]
        v = term
        for _ in range(config.terms):
            products = [
                hessian_vector(task, x, y, term, self.train.draw(client, config.batch))
                for client in self.cohort()
            ]
            term = [t - p / L for t, p in zip(term, mean(products), strict=True)]
            v = [a + t for a, t in zip(v, term, strict=True)]

        def piece(client):
            f_x, _ = outer_gradient(task, x, y, self.validation.draw(client, config.batch))
            g_xy = cross(task, x, y, v, self.train.draw(client, config.batch))
            return [a - b for a, b in zip(f_x, g_xy, strict=True)]

        h = mean([piece(client) for client in self.cohort()])
        task.x = [leaf - 0.01 * step for leaf, step in zip(x, h, strict=True)]

    def fedinn(self):
        """y after one call of FedInn."""
        task, config, cohort = self.task, self.config, self.cohort()
        x, anchor = task.x, task.y
        q = mean([inner_gradient(task, x, anchor, self.train.all(client)) for client in cohort])
        ends = []
        for client in cohort:
            y = [leaf - 0.01 * g for leaf, g in zip(anchor, q, strict=True)]
            for _ in range(config.inner_steps - 1):
                rows = self.train.draw(client, config.batch)
                here = inner_gradient(task, x, y, rows)
                there = inner_gradient(task, x, anchor, rows)
                y = [
                    leaf - 0.01 * (a - b + c)
                    for leaf, a, b, c in zip(y, here, there, q, strict=True)
                ]
            ends.append(y)
        return mean(ends)


class FedMSA:
    """A round after the first: the direction from all rows of all clients, then K local steps."""

    def __init__(self, task, config: Config):
        self.task, self.config = task, config
        self.train, self.validation = Rows(config.train, 0), Rows(config.validation, 1)
        u = [*task.x, *task.y, *(torch.zeros_like(leaf) for leaf in task.y)]
        self.u, self.before, self.h = u, u, [torch.zeros_like(leaf) for leaf in u]

    def maps(self, u, train, validation):
        """f_x - g_xy v, g_y and g_yy v - f_y."""
        n, m = len(self.task.x), len(self.task.y)
        x, y, v = u[:n], u[n : n + m], u[n + m :]
        f_x, f_y = outer_gradient(self.task, x, y, validation)
        g_y, g_xy, g_yy = second(self.task, x, y, v, train)
        first = [a - b for a, b in zip(f_x, g_xy, strict=True)]
        return [*first, *g_y, *(a - b for a, b in zip(g_yy, f_y, strict=True))]

    def draw(self, client):
        """A batch of both splits."""
        size = self.config.batch
        return self.train.draw(client, size), self.validation.draw(client, size)

    def all(self, client):
        """All rows of both splits."""
        return self.train.all(client), self.validation.all(client)

    def round(self) -> None:
        """One round."""
        u, before, renewal = self.u, self.before, 0.5
        deltas = []
        for client in range(CLIENTS):
            rows = self.all(client)
            new, old = self.maps(u, *rows), self.maps(before, *rows)
            deltas.append([a - (1 - renewal) * b for a, b in zip(new, old, strict=True)])
        h = [(1 - renewal) * a + d for a, d in zip(self.h, mean(deltas), strict=True)]
        ends = []
        for client in torch.randperm(CLIENTS)[: self.config.cohort].tolist():
            w, last, d = [a - 0.01 * b for a, b in zip(u, h, strict=True)], u, h
            for _ in range(self.config.local_steps - 1):
                rows = self.draw(client)
                new, old = self.maps(w, *rows), self.maps(last, *rows)
                d = [a + b - c for a, b, c in zip(d, new, old, strict=True)]
                w, last = [a - 0.01 * b for a, b in zip(w, d, strict=True)], w
            ends.append(w)
        self.u, self.before, self.h = mean(ends), u, h


TASKS = {
    "hyper_representation": (HyperRepresentation, FedNest),
    "loss_tuning": (LossTuning, FedNest),
    "fedmsa": (LossTuning, FedMSA),
}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    made = {}
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        name = request["task"]
        if name not in made:
            kind, algorithm = TASKS[name]
            config = Config(**request["config"])
            made[name] = algorithm(kind(config), config)
            made[name].round()
        began = time.process_time()
        for _ in range(request["rounds"]):
            made[name].round()
        spent = (time.process_time() - began) / request["rounds"]
        print(json.dumps({"seconds": spent}), flush=True)


if __name__ == "__main__":
    main()
