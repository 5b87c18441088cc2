"""Evaluations: what is measured between rounds. They cost nothing: no ledger counts them."""

import abc
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from rookery.clients.local_client import LocalClient
from rookery.clients.population import Population
from rookery.engines.code_key import CodeKey
from rookery.program.step import Step, traced_loop
from rookery.types import Key, Tree

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

        def one(example):
            return {name: metric(*solution, example) for name, metric in self.metrics.items()}

        each = lax.map(one, self.data, batch_size=_at_once(self.data))
        return {name: jnp.mean(values) for name, values in each.items()}


class OnClients(AbstractEvaluation):
    """Each client's mean over its own examples, summarised over the clients.

    All clients count equally, whatever their weights. A metric ``name`` yields ``name/mean``,
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

    def __call__(self, solution, population, key):
        """Four numbers for every metric, and with ``per_client`` one per client."""
        population.check_rows("OnClients")
        metrics = {**self.scores, **self.losses}

        def of_client(id):
            client = LocalClient(population, id, jax.random.fold_in(key, id), traced_loop)
            own = solution if self.adapt is None else self.adapt(client, *solution)
            sample = client.draw(self.split, None, client.key)

            def block(rows, weights):
                values = jax.vmap(lambda row: {n: m(*own, row) for n, m in metrics.items()})(rows)
                return {n: jnp.dot(weights, v.astype(weights.dtype)) for n, v in values.items()}

            return sample.average(block)

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


def metric_names(
    evaluations: Sequence[AbstractEvaluation], solution: tuple[Tree, ...], population: Population
) -> list[str]:
    """The names of the numbers that evaluations measure, without computing them."""
    arguments = (solution, population, jax.random.key(0))
    return [name for e in evaluations for name in eqx.filter_eval_shape(e, *arguments)]


def evaluate_all(evaluations, solutions, population, keys) -> dict[str, jax.Array]:
    """The numbers of all evaluations for stacked solutions, one run after another."""
    return _evaluate_all(CodeKey([evaluations]), evaluations, solutions, population, keys)


@eqx.filter_jit
def _evaluate_all(code, evaluations, solutions, population, keys) -> dict[str, jax.Array]:
    del code  # it only tells programs apart

    def one(run):
        solution, key = run
        numbers: dict[str, jax.Array] = {}
        for evaluation in evaluations:
            new = evaluation(solution, population, key)
            if twice := set(numbers) & set(new):
                raise ValueError(
                    f"two evaluations give {sorted(twice)}; set label= on one of them."
                )
            numbers.update(new)
        return numbers

    return lax.map(one, (solutions, keys))


def _at_once(data: Tree) -> int:
    return min(1024, jax.tree.leaves(data)[0].shape[0])
