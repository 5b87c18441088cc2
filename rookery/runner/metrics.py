"""Evaluations: what is measured between rounds. They cost nothing: no ledger counts them.

A metric is evaluated like a loss: on one example, or on pairs or a batch of them if it is an
``OverPairs`` or an ``OverBatch``. A metric with a parameter named ``key`` gets one per example,
made from the seed of the run and the round: its dropout is on, and a resumed run measures the same.
Write a metric without ``key`` to measure the model without dropout.
"""

import abc
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from rookery.clients.local_client import LocalClient
from rookery.clients.population import Population
from rookery.engines.code_key import CodeKey
from rookery.loss import AbstractOver, average, wants_key
from rookery.program.step import Step, traced_loop
from rookery.runner.best import Goal
from rookery.types import Key, Sample, Tree

Metric = Callable[..., jax.Array]
"""``metric(*solution, example)``: one number for one example; the mean is reported."""


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

    >>> size = OfSolution(lambda x: {"size": jnp.linalg.norm(x)})

    Args:
        fn: takes the problem's variables, returns a dictionary of numbers.
    """

    fn: Callable[..., Mapping[str, jax.Array]]

    def __call__(self, solution, population, key):
        """What ``fn`` returns."""
        return dict(self.fn(*solution))


class OnServer(AbstractEvaluation):
    """Means over examples that the server holds, such as a test set.

    >>> def error(w, example):
    ...     return (example["input"] @ w - example["target"]) ** 2
    >>> test = {"input": jnp.ones((4, 2)), "target": jnp.zeros(4)}
    >>> evaluation = OnServer({"error": error}, test)

    Args:
        metrics: by name, ``metric(*solution, example)``.
        data: pytree of arrays whose first axis counts the examples.
    """

    metrics: Mapping[str, Metric]
    data: Tree

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
        if twice := sorted(set(self.scores) & set(self.losses)):
            raise ValueError(
                f"{', '.join(twice)} cannot be a score and a loss: is more of it better, or less?"
            )

    def __call__(self, solution, population, key, own_leaves=None):
        """Four numbers for every metric, and with ``per_client`` one per client."""
        population.check_rows("OnClients")
        metrics = {**self.scores, **self.losses}

        def of_client(id):
            client = LocalClient(population, id, jax.random.fold_in(key, id), traced_loop)
            own = solution
            if own_leaves is not None:
                own = eqx.combine(jax.tree.map(lambda rows: rows[id], own_leaves), solution)
            own = own if self.adapt is None else self.adapt(client, *own)
            sample = client.draw(self.split, None, client.key)

            def all_plain(*arguments):
                return {n: m(*arguments) for n, m in metrics.items() if _is_plain(m)}

            means = {n: _mean(m, own, sample) for n, m in metrics.items() if not _is_plain(m)}
            if len(means) < len(metrics):
                means |= _mean(all_plain, own, sample)
            return {n: means[n] for n in metrics}

        each = lax.map(of_client, jnp.arange(population.n_clients, dtype=jnp.int32))
        out = {}
        for name, values in each.items():
            worst_first = jnp.sort(values, descending=name not in self.scores)
            tenth = max(1, population.n_clients // 10)
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
    """The numbers of all evaluations for stacked solutions, one run after another.

    Args:
        evaluations: what is measured.
        solutions: of all runs, stacked.
        population: the clients.
        keys: one per run.
        own_leaves: of the clients of all runs, stacked, if solutions have such leaves.
    """
    code = CodeKey([evaluations])
    return _evaluate_all(code, evaluations, solutions, population, keys, own_leaves)


@eqx.filter_jit
def _evaluate_all(
    code, evaluations, solutions, population, keys, own_leaves
) -> dict[str, jax.Array]:
    del code  # it only tells programs apart

    def one(run):
        solution, key, own = run
        numbers: dict[str, jax.Array] = {}
        for evaluation in evaluations:
            if own is not None and isinstance(evaluation, OnClients):
                new = evaluation(solution, population, key, own)
            else:
                new = evaluation(solution, population, key)
            if twice := set(numbers) & set(new):
                raise ValueError(
                    f"two evaluations give {sorted(twice)}; set label= on one of them."
                )
            numbers.update(new)
        return numbers

    return lax.map(one, (solutions, keys, own_leaves))


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
