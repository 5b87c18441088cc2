"""Which clients the rounds to come will visit, before anything of these rounds is computed.

A scout traces the server program without its client steps. What clients would reply, and the state,
are unknown numbers to it. Draws come from the key and the number of the round, so who is drawn is
known all the same; a program that draws by what it has computed is refused.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from rookery.clients.local_client import LocalClient
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import (
    AbstractFederation,
    Cached,
    Placed,
    Step,
    client_key,
    common_cohort,
)
from rookery.program.memory import Memory, check_recall, rows_to_keep
from rookery.program.participation import Cohort
from rookery.program.step import traced_loop
from rookery.types import Key, Tree


class ScoutFederation(AbstractFederation):
    """The words, without client steps; it notes which clients they concern.

    Attributes:
        visited: whose rows or memory have been needed so far.
    """

    def __init__(self, program: Program, round: jax.Array, visited: jax.Array, unknown: jax.Array):
        weights = jnp.asarray(program.population.weights, float)
        super().__init__(program.population.n_clients, weights, round, program.aggregate)
        self.visited = visited
        self._population = program.population
        self._unknown = unknown

    def map(self, step: Step, *values: Placed, key: Key | None = None, **settings) -> Placed:
        """Unknown replies of the shapes that the step gives."""
        cohort = common_cohort(step, values)
        self._visit(cohort)
        replies = jax.eval_shape(lambda: self.evaluate(step, *values, key=key, **settings))
        return Placed(cohort, unknown_like(replies, self._unknown), is_stacked=True)

    def evaluate(self, step: Step, *values: Placed, key: Key | None = None, **settings) -> Tree:
        """The replies themselves, a row per slot, of a step that does not read the rows."""
        cohort = common_cohort(step, values)

        def one(slot):
            id, occurrence, own = slot
            client = LocalClient(self._population, id, client_key(key, id, occurrence), traced_loop)
            rows = iter(own)
            arguments = [next(rows) if v.is_stacked else v.value for v in values]
            return step(client, *arguments, **settings)

        slots = (cohort.ids, cohort.occurrence, [v.value for v in values if v.is_stacked])
        return jax.vmap(one)(slots)

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """Unknown rows."""
        check_recall(cohort, memory, self.n_clients)
        self._visit(cohort)
        rows = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct((len(cohort), *a.shape[1:]), a.dtype), memory.rows
        )
        return Placed(cohort, unknown_like(rows, self._unknown), is_stacked=True)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """The memory, which is unknown anyway."""
        _, cohort = rows_to_keep(memory, placed, self.n_clients)
        self._visit(cohort)
        return memory

    def repeat(self, n, body, init) -> Tree:
        """A ``fori_loop`` that carries the notes along."""

        def once(i, carry):
            value, self.visited = carry
            value = body(i, value)
            return value, self.visited

        value, self.visited = lax.fori_loop(0, n, once, (init, self.visited))
        return value

    def poll(self, jobs, step, *values, rules, key, settings=None):
        """Refused: who arrives depends on the times in the state."""
        raise NotScoutable("fed.poll")

    def ask(self, who, step, *values, key, settings=None):
        """Refused: the set of clients comes from the state."""
        raise NotScoutable("fed.ask")

    def _visit(self, cohort: Cohort) -> None:
        # inactive slots too: what is computed for them is masked, but it must be finite
        self.visited = self.visited.at[cohort.ids].set(True)

    def _new_cohort(self, cohort: Cohort) -> None:
        """Nothing is billed."""

    def _new_cached(self, cached: Cached, holders: jax.Array) -> None:
        """Nothing is billed."""

    def _send(self, cohort: Cohort, value: Tree | Cached, *, as_rows: bool) -> Tree:
        return value.value if isinstance(value, Cached) else value

    def _collect(self, placed: Placed, *, needs_all: bool) -> tuple[Tree, Cohort]:
        return placed.rows(), placed.cohort


class NotScoutable(Exception):
    """A program uses a word whose clients are not known beforehand."""


def unknown_like(shapes: Tree, unknown: jax.Array) -> Tree:
    """Arrays of the given shapes and types whose numbers all come from one unknown number."""

    def one(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            kinds = []
            data = jax.eval_shape(
                lambda key: (kinds.append(jax.random.key_impl(key)), jax.random.key_data(key))[1],
                leaf,
            )
            return jax.random.wrap_key_data(one(data), impl=kinds[0])
        return jnp.broadcast_to(unknown.astype(leaf.dtype), leaf.shape)

    return jax.tree.map(one, shapes)


def visited_clients(
    program: Program,
    algorithm: AbstractAlgorithm,
    state: Tree,
    is_state_known: bool,
    unknown: jax.Array,
    key: Key,
    first: jax.Array,
    n: jax.Array,
) -> Bool[Array, " clients"]:
    """Who takes part in rounds ``first`` to ``first + n - 1``, in any exchange.

    Args:
        program: what is run; of the rows only the shapes are used.
        algorithm: the server program.
        state: before the first round; memories need no more than one row, and are unknown.
        is_state_known: whether draws may depend on the other values of the state, as they can in
            the first round; otherwise only shapes and types are used.
        unknown: any number; the result must not depend on it.
        key: of the run.
        first: the first round.
        n: how many rounds.
    """

    def conceal(leaf):
        return leaf if is_state_known and not _is_memory(leaf) else unknown_like(leaf, unknown)

    shown = jax.tree.map(conceal, state, is_leaf=_is_memory)

    def once(i, visited):
        round = first + i
        fed = ScoutFederation(program, round, visited, unknown)
        algorithm.round(fed, program.problem, shown, jax.random.fold_in(key, round))
        return fed.visited

    return lax.fori_loop(0, n, once, jnp.zeros(program.population.n_clients, bool))


def _is_memory(node: object) -> bool:
    return isinstance(node, Memory)


def depends_on_unknown(fn: Callable[[jax.Array], Tree]) -> bool:
    """Whether the result of a function depends on its argument, a number; nothing is computed.

    >>> depends_on_unknown(lambda x: (jnp.ones(3), 2 * x))
    True
    >>> depends_on_unknown(lambda x: jnp.ones(3))
    False
    """
    number = jax.ShapeDtypeStruct((), float)
    jax.eval_shape(fn, number)  # errors of the function itself
    try:
        # a result that varies along the mapped axis depends on what is mapped
        jax.eval_shape(jax.vmap(fn, out_axes=None), jax.ShapeDtypeStruct((2,), number.dtype))
    except ValueError:
        return True
    return False
