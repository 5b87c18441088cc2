"""Evaluations: what is measured between rounds. They cost nothing: no ledger counts them.

A metric is evaluated like a loss: on one example, or on pairs or a batch of them if it is an
``OverPairs`` or an ``OverBatch``. A metric with a parameter named ``key`` gets one per example,
made from the seed of the run and the round: its dropout is on, and a resumed run measures the same.
Write a metric without ``key`` to measure the model without dropout.
"""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from rookery import check
from rookery.clients.local_client import LocalClient
from rookery.clients.population import Population
from rookery.engines.code_key import CodeKey
from rookery.engines.scout import depends_on_unknown, unknown_like
from rookery.loss import AbstractOver, average, wants_key
from rookery.program.step import Step, traced_loop
from rookery.runner.best import GOALS, Goal
from rookery.types import Key, Sample, Tree

T = TypeVar("T")

BLOCK_BYTES = 1 << 26
"""Bytes of rows that are read at once for evaluations of a population on disk."""

Metric = Callable[..., jax.Array]
"""``metric(*solution, example)``: one number for one example; the mean is reported."""


def _as_goals(goal: Mapping[str, Goal]) -> tuple[tuple[str, Goal], ...]:
    """Field converter: hashable, and checked."""
    for name, way in dict(goal).items():
        check.one_of(f"goal of {name!r}", way, GOALS)
    return tuple(dict(goal).items())


class AbstractEvaluation(eqx.Module):
    """Computes named numbers for a solution.

    >>> class Norm(AbstractEvaluation):
    ...     def __call__(self, solution, population, key):
    ...         return {"norm": jnp.linalg.norm(solution[0])}
    """

    @abc.abstractmethod
    def __call__(
        self, solution: tuple[Tree, ...], population: Population, key: Key
    ) -> dict[str, jax.Array]:
        """The numbers. Traced by JAX, so only JAX operations may be used.

        A value of shape [clients] is a number per client: it goes to ``Result.per_client`` and to
        ``per_client.jsonl`` in the run directory instead of the history.
        """

    def goals(self) -> Mapping[str, Goal]:
        """For numbers of which it is known: whether more of them is better, or less."""
        return {}


class OfSolution(AbstractEvaluation):
    """Numbers that depend on the solution alone, such as its distance to a known one.

    >>> size = OfSolution(lambda x: {"size": jnp.linalg.norm(x)}, goal={"size": "min"})

    Args:
        fn: takes the problem's variables, returns a dictionary of numbers.
        goal: for numbers of which one way is better, ``min`` or ``max``: for reports, rules that
            end a run, and the guard.
    """

    fn: Callable[..., Mapping[str, jax.Array]]
    goal: tuple[tuple[str, Goal], ...] = eqx.field(
        converter=_as_goals, static=True, default=(), kw_only=True
    )

    def goals(self) -> Mapping[str, Goal]:
        """As they were declared."""
        return dict(self.goal)

    def __call__(self, solution, population, key):
        """What ``fn`` returns."""
        return dict(self.fn(*solution))


def _check_metrics(what: str, metrics: Mapping[str, Metric]) -> None:
    if not isinstance(metrics, Mapping):
        raise TypeError(f"{what} must be a dictionary of functions by name, got {metrics!r}.")
    for name, metric in metrics.items():
        if not callable(metric):
            raise TypeError(f"{what}: {name!r} must be a function, got {metric!r}.")


class OnServer(AbstractEvaluation):
    """Means over examples that the server holds, such as a test set.

    >>> def error(w, example):
    ...     return (example["input"] @ w - example["target"]) ** 2
    >>> test = {"input": jnp.ones((4, 2)), "target": jnp.zeros(4)}
    >>> evaluation = OnServer({"error": error}, test, goal={"error": "min"})

    Args:
        metrics: by name, ``metric(*solution, example)``.
        data: pytree of arrays whose first axis counts the examples.
        goal: for metrics of which one way is better, ``min`` or ``max``, by name.
    """

    metrics: Mapping[str, Metric]
    data: Tree
    goal: tuple[tuple[str, Goal], ...] = eqx.field(
        converter=_as_goals, static=True, default=(), kw_only=True
    )

    def __check_init__(self):
        _check_metrics("metrics of OnServer", self.metrics)
        for name, _ in self.goal:
            check.one_of("metric in goal of OnServer", name, self.metrics)

    def goals(self) -> Mapping[str, Goal]:
        """As they were declared."""
        return dict(self.goal)

    def __call__(self, solution, population, key):
        """One mean per metric."""
        plain = {name: metric for name, metric in self.metrics.items() if _is_plain(metric)}
        others = {name: metric for name, metric in self.metrics.items() if name not in plain}

        def one(example):
            return {name: metric(*solution, example) for name, metric in plain.items()}

        each = lax.map(one, self.data, batch_size=_at_once(self.data)) if plain else {}
        means = {name: jnp.mean(values) for name, values in each.items()}
        if others:
            server = LocalClient(_one_client(self.data), 0, key, traced_loop)
            sample = server.draw("train", None, server.key)
            means |= {name: _mean(metric, solution, sample) for name, metric in others.items()}
        return {name: means[name] for name in self.metrics}


class OnClients(AbstractEvaluation):
    """Each client's mean over its own examples, summarised over the clients.

    All clients count equally, whatever their weights. A client whose model has leaves of its own
    (``FedAvg(own=...)``) is measured with them. A metric ``name`` yields ``name/mean``,
    ``name/variance``, ``name/worst``, and ``name/worst10``: the mean over the worst tenth of the
    clients (at least one). With ``per_client`` there is ``name/each``, a number per client.

    >>> def error(w, example):
    ...     return (example["input"] @ w - example["target"]) ** 2
    >>> evaluation = OnClients(losses={"error": error}, split="test", per_client=True)

    Args:
        scores: metrics of which more is better; the worst client has the smallest.
        losses: metrics of which less is better; the worst client has the largest.
        split: which of the clients' splits to use.
        adapt: a client step ``adapt(client, *solution)`` that returns a solution adapted to the
            client; metrics are taken after it.
        label: prefix of the names, to tell two evaluations of one metric apart.
        per_client: also record the value of every client, by name, in ``Result.per_client`` and in
            ``per_client.jsonl`` of the run directory.
    """

    scores: Mapping[str, Metric] = eqx.field(default_factory=dict)
    losses: Mapping[str, Metric] = eqx.field(default_factory=dict)
    split: str = eqx.field(static=True, default="test")
    adapt: Step | None = None
    label: str = eqx.field(static=True, default="")
    per_client: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        _check_metrics("scores of OnClients", self.scores)
        _check_metrics("losses of OnClients", self.losses)
        if twice := sorted(set(self.scores) & set(self.losses)):
            raise ValueError(
                f"{', '.join(twice)} cannot be a score and a loss: is more of it better, or less?"
            )

    def check_split(self, splits: Sequence[str]) -> None:
        """Raise unless the clients have the split."""
        if self.split not in splits:
            raise ValueError(
                f"OnClients measures on the split {self.split!r}, and the clients' splits are: "
                f"{', '.join(splits)}. Choose one of them, as OnClients(..., split={splits[0]!r})."
            )

    def __call__(self, solution, population, key, own_leaves=None):
        """Four numbers for every metric, and with ``per_client`` one per client."""
        population.check_rows("OnClients")
        clients = jnp.arange(population.n_clients, dtype=jnp.int32)
        return self.summary(self.of_clients(clients, solution, population, key, own_leaves))

    def of_clients(
        self,
        clients: Int[Array, " some"],
        solution: tuple[Tree, ...],
        population: Population,
        key: Key,
        own_leaves: tuple[Tree, ...] | None,
    ) -> dict[str, Float[Array, " some"]]:
        """The mean of every metric on some clients, whose rows must be here."""
        metrics = {**self.scores, **self.losses}

        def of_client(id):
            client = LocalClient(population, id, jax.random.fold_in(key, id), traced_loop)
            own = solution
            if own_leaves is not None:
                at = population.place(id)
                own = eqx.combine(jax.tree.map(lambda rows: rows[at], own_leaves), solution)
            own = own if self.adapt is None else self.adapt(client, *own)
            sample = client.draw(self.split, None, client.key)

            def all_plain(*arguments):
                return {n: m(*arguments) for n, m in metrics.items() if _is_plain(m)}

            means = {n: _mean(m, own, sample) for n, m in metrics.items() if not _is_plain(m)}
            if len(means) < len(metrics):
                means |= _mean(all_plain, own, sample)
            return {n: means[n] for n in metrics}

        return lax.map(of_client, clients)

    def summary(self, each: Mapping[str, Float[Array, " clients"]]) -> dict[str, jax.Array]:
        """The four numbers of every metric, and with ``per_client`` one per client."""
        out = {}
        for name, values in each.items():
            worst_first = jnp.sort(values, descending=name not in self.scores)
            tenth = max(1, values.shape[0] // 10)
            out[f"{self.label}{name}/mean"] = jnp.mean(values)
            out[f"{self.label}{name}/worst"] = worst_first[0]
            out[f"{self.label}{name}/worst10"] = jnp.mean(worst_first[:tenth])
            out[f"{self.label}{name}/variance"] = jnp.var(values)
            if self.per_client:
                out[f"{self.label}{name}/each"] = values
        return out

    def goals(self) -> Mapping[str, Goal]:
        """More is better of scores, less of losses; nothing is known of variances."""
        known: dict[str, Goal] = {
            **dict.fromkeys(self.scores, "max"),
            **dict.fromkeys(self.losses, "min"),
        }
        return {
            f"{self.label}{name}/{summary}": goal
            for name, goal in known.items()
            for summary in ("mean", "worst", "worst10")
        }


def metric_names(
    evaluations: Sequence[AbstractEvaluation], solution: tuple[Tree, ...], population: Population
) -> list[str]:
    """The names of the numbers that evaluations measure, without computing them."""
    arguments = (solution, population, jax.random.key(0))
    return [name for e in evaluations for name in eqx.filter_eval_shape(e, *arguments)]


def metric_goals(
    evaluations: Sequence[AbstractEvaluation], solution: tuple[Tree, ...], population: Population
) -> dict[str, Goal | None]:
    """For every number of the history whether more or less is better; None if it is not known."""
    arguments = (solution, population, jax.random.key(0))
    found: dict[str, Goal | None] = {}
    for evaluation in evaluations:
        shapes, known = eqx.filter_eval_shape(evaluation, *arguments), evaluation.goals()
        found |= {name: known.get(name) for name, shape in shapes.items() if not shape.ndim}
    return found


def evaluate_all(evaluations, solutions, population, keys, own_leaves=None) -> dict[str, jax.Array]:
    """The numbers of all evaluations for several solutions, one run after another.

    Args:
        evaluations: what is measured.
        solutions: of all runs.
        population: the clients.
        keys: one per run.
        own_leaves: of the clients of all runs, stacked, if solutions have such leaves.
    """
    code = CodeKey([evaluations])
    if population.is_on_disk:
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *solutions)
        return _evaluate_in_blocks(code, evaluations, stacked, population, keys, own_leaves)
    return _evaluate_all(code, evaluations, solutions, population, keys, own_leaves)


def check_blocks(
    evaluations: Sequence[AbstractEvaluation], solution: tuple[Tree, ...], population: Population
) -> None:
    """Raise if an evaluation needs the rows of all clients at once and they are on disk."""
    if not population.is_on_disk:
        return
    nobody = population.resident(np.zeros(0, int), 1, 1)
    for evaluation in evaluations:
        if isinstance(evaluation, OnClients):
            continue

        def numbers(unknown, evaluation=evaluation):
            data = unknown_like(nobody.data, unknown)
            return evaluation(solution, replace(nobody, data=data), jax.random.key(0))

        if depends_on_unknown(numbers):
            raise ValueError(
                f"{type(evaluation).__name__} reads the rows of all clients, and the population is "
                "on disk. Use rk.metrics.OnClients, which reads one block of clients after "
                "another, or population.in_memory()."
            )


def _evaluate_in_blocks(
    code, evaluations, solutions, population, keys, own_leaves
) -> dict[str, jax.Array]:
    """The same numbers, from one block of clients after another."""
    on_clients = tuple(e for e in evaluations if isinstance(e, OnClients))
    n_clients, size, rows = population.n_clients, *_block_sizes(population)

    def read(begin):
        clients = np.arange(begin, min(begin + size, n_clients))
        own = jax.tree.map(lambda a: np.asarray(a[:, clients]), own_leaves)
        return clients, jax.device_put(population.resident(clients, size, rows)), own

    blocks = []
    for clients, resident, own in _ahead(read, range(0, n_clients, size) if on_clients else ()):
        padded = np.pad(clients, (0, size - clients.size), "edge").astype(np.int32)
        own = jax.tree.map(lambda a: _padded(a, size), own)
        each = _of_block(code, on_clients, padded, solutions, resident, keys, own)
        blocks.append(jax.tree.map(lambda a, n=clients.size: a[:, :n], jax.device_get(each)))
    each = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *blocks) if blocks else []
    nobody = population.resident(np.zeros(0, int), 1, 1)
    return _summaries(code, evaluations, solutions, nobody, keys, each)


def _ahead(read: Callable[[int], T], places: Iterable[int]) -> Iterator[T]:
    """``read`` of each place in order; while one result is used, a thread reads the next."""
    with ThreadPoolExecutor(1) as reader:
        waiting: list[Future[T]] = []
        for place in places:
            waiting.append(reader.submit(read, place))
            if len(waiting) > 1:
                yield waiting.pop(0).result()
        for last in waiting:
            yield last.result()


def _block_sizes(population: Population) -> tuple[int, int]:
    """How many clients a block has, and the most rows of any block."""
    of_row = sum(a.nbytes // max(a.shape[0], 1) for a in jax.tree.leaves(population.data))
    rows = np.asarray(population.counts).sum(axis=0)
    size = max(1, min(population.n_clients, int(BLOCK_BYTES / max(of_row * rows.mean(), 1))))
    most = np.add.reduceat(rows, np.arange(0, population.n_clients, size)).max()
    return size, int(most)


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    return np.pad(rows, [(0, 0), (0, size - rows.shape[1]), *[(0, 0)] * (rows.ndim - 2)])


@eqx.filter_jit
def _of_block(
    code, evaluations, clients, solutions, population, keys, own_leaves
) -> list[dict[str, jax.Array]]:
    """Per evaluation, the means of all runs on the clients of a block."""
    del code  # it only tells programs apart

    def one(run):
        solution, key, own = run
        return [e.of_clients(clients, solution, population, key, own) for e in evaluations]

    return lax.map(one, (solutions, keys, own_leaves))


@eqx.filter_jit
def _summaries(code, evaluations, solutions, population, keys, each) -> dict[str, jax.Array]:
    """The numbers of all evaluations, from the means of all clients."""
    del code  # it only tells programs apart

    def one(run):
        solution, key, values = run
        of_clients = iter(values)
        return _joined(
            evaluation.summary(next(of_clients))
            if isinstance(evaluation, OnClients)
            else evaluation(solution, population, key)
            for evaluation in evaluations
        )

    return lax.map(one, (solutions, keys, each))


def _joined(found: Iterable[Mapping[str, jax.Array]]) -> dict[str, jax.Array]:
    """The numbers of several evaluations, whose names must differ."""
    numbers: dict[str, jax.Array] = {}
    for new in found:
        if twice := set(numbers) & set(new):
            raise ValueError(f"two evaluations give {sorted(twice)}; set label= on one of them.")
        numbers.update(new)
    return numbers


@eqx.filter_jit
def _evaluate_all(
    code, evaluations, solutions, population, keys, own_leaves
) -> dict[str, jax.Array]:
    del code  # it only tells programs apart

    def one(run):
        solution, key, own = run
        return _joined(
            evaluation(solution, population, key, own)
            if own is not None and isinstance(evaluation, OnClients)
            else evaluation(solution, population, key)
            for evaluation in evaluations
        )

    # stacked in here, where a single solution is not copied
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *solutions)
    return lax.map(one, (stacked, keys, own_leaves))


def _is_plain(metric: Metric) -> bool:
    """Whether a metric needs one example and nothing else."""
    return not isinstance(metric, AbstractOver) and not wants_key(metric)


def _mean(metric: Callable[..., Tree], point: tuple[Tree, ...], sample: Sample) -> Tree:
    """The mean of a metric, or of several in a dictionary, over a sample."""

    def block(each, weights):
        return jax.tree.map(lambda v: jnp.dot(weights, v.astype(weights.dtype)), each(*point))

    return average(metric, sample, block)


def _one_client(data: Tree) -> Population:
    """The server's examples as the rows of a single client."""
    n = jax.tree.leaves(data)[0].shape[0]
    nothing = jnp.zeros((1, 1), jnp.int32)
    return Population(data, nothing, nothing + n, jnp.ones(1), ("train",), (n,))


def _at_once(data: Tree) -> int:
    return min(1024, jax.tree.leaves(data)[0].shape[0])
