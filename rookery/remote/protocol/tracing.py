"""Traces one round of an algorithm: which client steps it runs, on which shapes.

Before the first message both sides trace a round abstractly, without data. The resulting plan keeps
messages small and safe: both sides have the calls in the same order, so a message names a call by
its number; a client runs only calls of its own algorithm; settings given by keyword are not sent,
because the client's own trace has them; each side knows which shapes and types to expect; and a
client knows which of its results the algorithm uploads, and uses where.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rookery.clients.local_client import LocalClient
from rookery.clients.population import Population
from rookery.program.aggregate import Aggregate, Mean
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import (
    NO_SETTINGS,
    AbstractFederation,
    Around,
    Cached,
    Placed,
    Step,
    check_step,
    client_key,
    common_cohort,
    only_sums,
)
from rookery.program.memory import Memory, gathered, rows_to_keep
from rookery.program.participation import Cohort
from rookery.program.polling import (
    PollResult,
    check_ask,
    check_poll,
    check_result,
    plain_values,
    received,
)
from rookery.program.step import traced_loop
from rookery.remote.protocol.plan import (
    Call,
    Computed,
    Flow,
    Plan,
    TracedSetting,
    is_same,
    step_name,
    struct_of,
)
from rookery.remote.protocol.secure import FEWEST, SecureAggregation
from rookery.types import Key, Problem, Tree


def trace_round(
    algorithm: AbstractAlgorithm,
    problem: Problem,
    population: Population,
    state: Tree,
    aggregate: Aggregate | None = None,
    secure: SecureAggregation | None = None,
) -> Plan:
    """The plan of an algorithm.

    Args:
        algorithm: the algorithm, with its numbers as arrays.
        problem: the problem it solves.
        population: only its shapes matter; on a client it has that client's rows alone.
        state: a state of the algorithm, or its shapes.
        aggregate: the server's rule, which may refuse the algorithm; the calls do not depend on it.
            None is the mean.
        secure: the settings of secure aggregation, if replies are masked. A round that needs single
            replies is then refused.
    """
    rule = Mean() if aggregate is None else aggregate
    calls: list[Call] = []
    flow = _FlowOfRound()

    def round(state, key, number):
        is_secure = secure is not None
        fed = _TracingFederation(population, number, calls, flow, rule, is_secure=is_secure)
        return algorithm.round(fed, problem, state, key)

    jax.eval_shape(round, state, jax.random.key(0), jnp.int32(0))
    return Plan(calls, flow.found(), flow.anchors, secure=secure)


class _FlowOfRound:
    """Finds where values go, and of replies that are iterates what they have moved away from.

    Values are told apart by their tracers, which are kept so that none is made at another's place.

    Attributes:
        anchors: see :data:`~rookery.remote.protocol.plan.Anchors`.
    """

    def __init__(self):
        self.anchors: dict[tuple[int, int], tuple[int, ...]] = {}
        self._made: dict[int, tuple[Call, int, list]] = {}  # by tracer: call, leaf, arguments
        self._uploaded: set[Computed] = set()
        self._kept: set[Computed] = set()
        self._used: dict[tuple[int, int], set[Computed]] = {}
        self._tracers: list = []

    def found(self) -> Flow:
        """What was found."""
        used = {at: frozenset(values) for at, values in self._used.items()}
        return Flow(frozenset(self._uploaded), frozenset(self._kept), used)

    def mapped(self, call: Call, arguments: Sequence[Placed], reply: Placed) -> None:
        """A call has made a reply of arguments."""
        given = jax.tree.leaves([value.value for value in arguments])
        leaves = jax.tree.leaves(reply.value)
        self._tracers += [given, leaves]
        for place, tracer in enumerate(given):
            self._used.setdefault((call.number, place), set()).update(self._computed([tracer]))
        for leaf, tracer in enumerate(leaves):
            self._made[id(tracer)] = call, leaf, given

    def collected(self, placed: Placed) -> None:
        """Values go to the server."""
        self._uploaded |= self._computed(jax.tree.leaves(placed.value))

    def polled(self, call: Call) -> None:
        """All that a call computes goes to the server."""
        self._uploaded |= {(call.number, i) for i in range(len(jax.tree.leaves(call.reply)))}

    def remembered(self, placed: Placed) -> None:
        """Values become memories."""
        self._kept |= self._computed(jax.tree.leaves(placed.value))

    def _computed(self, tracers: list) -> set[Computed]:
        made = [self._made[id(one)] for one in tracers if id(one) in self._made]
        return {(call.number, leaf) for call, leaf, _ in made}

    def averaged(self, reply: Placed, around: Around) -> None:
        """A mean of replies is taken, which have moved away from given values."""
        for tracer, anchor in zip(
            jax.tree.leaves(reply.value), _anchor_leaves(reply.value, around), strict=True
        ):
            made = self._made.get(id(tracer))
            if made is None:
                continue
            call, leaf, given = made
            path = () if anchor is None else self._path(given, anchor)
            if self.anchors.setdefault((call.number, leaf), path) != path:
                self.anchors[call.number, leaf] = ()  # not the same each time: around zero

    def _path(self, given: list, anchor: object) -> tuple[int, ...]:
        """Where an anchor is among the arguments of a call, or of the calls that made them."""
        for place, tracer in enumerate(given):
            if tracer is anchor:
                return (place,)
        for place, tracer in enumerate(given):
            if id(tracer) in self._made and (path := self._path(self._made[id(tracer)][2], anchor)):
                return (place, *path)
        return ()


def _anchor_leaves(reply: Tree, around: Around) -> list:
    """For each leaf of a reply the tracer of its anchor, or None."""
    if isinstance(around, tuple) and not isinstance(around, Placed):
        pairs = zip(reply, around, strict=True)
        return [leaf for part, one in pairs for leaf in _anchor_leaves(part, one)]
    n = len(jax.tree.leaves(reply))
    leaves = [] if around is None else jax.tree.leaves(around.value)
    return leaves if len(leaves) == n else [None] * n


class _TracingFederation(AbstractFederation):
    """The federation, traced on one client of each cohort; counts no costs."""

    def __init__(
        self,
        population: Population,
        round,
        calls: list[Call],
        flow: _FlowOfRound,
        rule: Aggregate,
        *,
        is_secure: bool,
    ):
        weights = jnp.asarray(population.weights, float)
        total = self._hidden if is_secure else None
        super().__init__(population.n_clients, weights, round, rule, hidden_total=total)
        self._drawn: set[int] = set()  # cohorts that were drawn, by token
        self._population = population
        self._calls, self._flow = calls, flow

    def map(
        self, step: Step, *values: Placed, key: Key | None = None, **settings: object
    ) -> Placed:
        """Trace the step on the first client and record the call."""
        cohort = common_cohort(step, values)
        arguments = tuple(
            jax.tree.map(lambda a: a[0], v.value) if v.is_stacked else v.value for v in values
        )
        reply, call = self._trace(step, arguments, key, settings)

        def repeated(leaf):
            return jnp.broadcast_to(leaf, (len(cohort), *jnp.shape(leaf)))

        placed = Placed(cohort, jax.tree.map(repeated, reply), is_stacked=True)
        self._flow.mapped(call, values, placed)
        return placed

    def mean(self, placed: Placed, *, around: Around = None, **how: Any) -> Tree:
        """Records what replies have moved away from."""
        self._flow.averaged(placed, around)
        return super().mean(placed, around=around, **how)

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """Gathers rows."""
        return gathered(cohort, memory, self.n_clients)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """The unchanged memory: only shapes matter."""
        if self.hides_replies:
            raise only_sums("fed.keep", "the server collects what clients keep, for checkpoints")
        rows_to_keep(memory, placed, self.n_clients)
        self._flow.remembered(placed)
        return memory

    def repeat(self, n, body, init):
        """Traces the body once: every iteration makes the same calls.

        If clients carry something from one iteration to the next, it is traced once more.
        """
        index = jnp.asarray(self.round * 0, jnp.int32)  # traced: its value changes per iteration
        nodes = jax.tree.leaves(init, is_leaf=lambda node: isinstance(node, Placed))
        if any(isinstance(node, Placed) for node in nodes):
            init = body(index, init)
        return body(index, init)

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """Trace the step on the first client, whose result is the only one to arrive."""
        if self.hides_replies:
            raise only_sums("fed.poll", "results come from single clients, at times of their own")
        plain = plain_values(values)
        check_poll(jobs, self.n_clients, plain, rules, self.aggregate)
        reply, call = self._trace(step, received(plain, 0), key, dict(settings))
        self._flow.polled(call)
        check_result(jobs, jax.tree.map(lambda a: jnp.asarray(a)[None], reply))
        polls = jobs.polls + 1
        return PollResult(
            replace(jobs, polls=polls), polls, self.weights[0], reply, reply, jobs.polls
        )

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """Trace the step on the first client, whose reply is the mean."""
        if self.hides_replies:
            raise only_sums("fed.ask", "the set of clients is not drawn, and may be small")
        plain = plain_values(values)
        check_ask(self.n_clients, plain, self.aggregate)
        reply, call = self._trace(step, received(plain, 0), key, dict(settings))
        self._flow.polled(call)
        return reply

    def _new_cohort(self, cohort: Cohort) -> None:
        self._drawn.add(cohort.token)

    def _new_cached(self, cached: Cached, holders: jax.Array) -> None:
        pass

    def _send(self, cohort: Cohort, value: Tree | Cached, *, as_rows: bool) -> Tree:
        return value.value if isinstance(value, Cached) else value

    def _collect(self, placed: Placed, *, needs_all: bool) -> tuple[Tree, Cohort]:
        self._flow.collected(placed)
        return placed.rows(), placed.cohort

    def _hidden(self, placed, weights, *, needs_all: bool) -> tuple[Tree, Cohort]:
        self._flow.collected(placed)
        cohort = placed.cohort
        if cohort.token not in self._drawn:
            raise only_sums(
                "a cohort that fed.sample has not drawn", "how few clients remain is not known"
            )
        if cohort.occurrence is not None:
            raise only_sums("a draw with replacement", "a client would stand in a sum twice")
        if len(cohort) < FEWEST:
            raise only_sums(f"a cohort of {len(cohort)}", f"it takes {FEWEST} clients to hide one")
        return jax.tree.map(lambda rows: rows[0], placed.rows()), cohort

    def _trace(
        self, step: Step, arguments: tuple, key: Key | None, settings: dict
    ) -> tuple[Tree, Call]:
        """The reply of one client, and the call, which is recorded."""
        check_step(step, settings)
        client = LocalClient(self._population, jnp.int32(0), client_key(key, 0, None), traced_loop)
        reply = step(client, *arguments, **settings)
        return reply, self._record(step, arguments, reply, settings, key is not None, client)

    def _record(self, step, arguments, reply, settings, has_key, client) -> Call:
        leaves, structure = jax.tree.flatten(settings)
        fixed = tuple(
            TracedSetting(str(leaf.dtype), leaf.shape) if isinstance(leaf, Tracer) else leaf
            for leaf in leaves
        )
        call = Call(
            number=len(self._calls),
            name=step_name(step),
            step=step,
            arguments=jax.tree.map(struct_of, arguments),
            reply=jax.tree.map(struct_of, reply),
            settings=fixed,
            structure=structure,
            has_key=has_key,
            draws=frozenset(client.draws),
            evaluations=tuple(client.evaluations),
        )
        for other in self._calls:
            if is_same(call, other):
                return other
        self._calls.append(call)
        return call
