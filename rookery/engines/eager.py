"""The eager engine: plain Python loops that define what a program means, and check it.

Its books are kept on their own, with Python integers and sets, so agreement with the compiled
engine's ledger says something.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery import tree
from rookery.clients.local_client import LocalClient
from rookery.engines import eager_poll
from rookery.engines.engine import AbstractEngine, AbstractRunner, Program, Progress
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.federation import (
    NO_SETTINGS,
    AbstractFederation,
    Cached,
    Placed,
    Settings,
    Step,
    client_key,
    common_cohort,
)
from rookery.program.ledger import Ledger
from rookery.program.memory import Memory, PerClient, check_keep, check_recall
from rookery.program.participation import Cohort
from rookery.program.polling import PollResult, all_finite, later
from rookery.types import Key, Tree


class EagerFederation(AbstractFederation):
    """The words, one client after another."""

    def __init__(self, program: Program, round: int):
        weights = jnp.asarray(program.population.weights, float)
        super().__init__(program.population.n_clients, weights, round, program.aggregate)
        self.population = program.population
        self.clock = program.clock
        self.ledger = Ledger()
        self.holders: dict[int, set[int]] = {}
        self._pending: dict[int, list[float]] = {}
        self.now = 0.0  # seconds since the round began

    def map(self, step: Step, *values: Placed, key: Key | None = None, **settings: Any) -> Placed:
        """A loop over the cohort; a failure names the client, the step and the round."""
        cohort = common_cohort(step, values)
        check_step(step, settings)
        replies = []
        for slot, id in enumerate(cohort.ids.tolist()):
            occurrence = None if cohort.occurrence is None else cohort.occurrence[slot]
            own = client_key(key, id, occurrence)
            arguments = [
                jax.tree.map(lambda a, s=slot: a[s], v.value) if v.is_stacked else v.value
                for v in values
            ]
            reply, work = self.run(id, own, step, arguments, settings)
            replies.append(reply)
            if bool(cohort.active[slot]):
                self.ledger += work
        shapes = {str(jax.tree.map(jnp.shape, reply)) for reply in replies}
        if len(shapes) > 1:
            raise ValueError(f"{step.__name__}: clients replied with different shapes: {shapes}.")
        return Placed(cohort, jax.tree.map(lambda *r: jnp.stack(r), *replies), is_stacked=True)

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """One row after another."""
        check_recall(cohort, memory, self.n_clients)
        rows = [jax.tree.map(lambda a, c=id: a[c], memory.rows) for id in cohort.ids.tolist()]
        return Placed(cohort, jax.tree.map(lambda *r: jnp.stack(r), *rows), is_stacked=True)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """One row after another, passing over slots that are switched off."""
        rows, cohort = self._replies(placed)
        check_recall(cohort, memory, self.n_clients)
        check_keep(memory, rows)
        kept = memory.rows
        for slot, (id, is_active) in enumerate(
            zip(cohort.ids.tolist(), cohort.active.tolist(), strict=True)
        ):
            if is_active:
                kept = jax.tree.map(lambda a, r, c=id, s=slot: a.at[c].set(r[s]), kept, rows)
        return Memory(kept, memory.n_clients)

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """One event after another; see :mod:`rookery.engines.eager_poll`."""
        check_step(step, settings)
        return eager_poll.poll(self, jobs, step, values, rules, key, settings)

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """One client after another."""
        check_step(step, settings)
        return eager_poll.ask(self, who, step, values, key, settings)

    def run(self, id: int, key: Key | None, step: Step, values: Sequence, settings: Settings):
        """One client's reply and what it cost; a failure names the client, the step, the round."""
        client = LocalClient(self.population, id, key, _loop)
        try:
            reply = step(client, *values, **settings)
        except Exception as error:
            error.add_note(f"client {id}, step {step.__name__}, round {self.round}")
            raise
        gradients, products = (int(w) for w in client.work)
        return reply, Ledger(gradients=gradients, hessian_vectors=products)

    def repeat(self, n, body, init):
        """A Python loop."""
        return _loop(n, body, init)

    def _hold(self, shared: Cached, holders: jax.Array) -> None:
        self.holders[shared.token] = {i for i, holds in enumerate(holders.tolist()) if holds}

    def _send(self, cohort: Cohort, slots: jax.Array, nbytes: int) -> None:
        pending = self._pending.setdefault(cohort.token, [0.0] * len(cohort))
        for slot, taking in enumerate(slots.tolist()):
            if taking:
                pending[slot] += nbytes
                self.ledger += Ledger(bytes_down=nbytes)

    def _send_to_newcomers(self, cohort: Cohort, shared: Cached) -> None:
        holders = self.holders[shared.token]
        newcomers = []
        for id, is_active in zip(cohort.ids.tolist(), cohort.active.tolist(), strict=True):
            newcomers.append(is_active and id not in holders)
            if is_active:
                holders.add(id)
        self._send(cohort, jnp.array(newcomers), tree.nbytes(shared.value))

    def _exchange(self, cohort: Cohort, nbytes: int) -> None:
        pending = self._pending.pop(cohort.token, [0.0] * len(cohort))
        seconds = self.clock.exchange_seconds(
            self.kind,
            self.round,
            self.ledger.exchanges,
            cohort.ids,
            cohort.active,
            jnp.array(pending) + nbytes,
        )
        self.now += float(seconds)
        active = sum(cohort.active.tolist())
        self.ledger += Ledger(
            exchanges=1, messages=2 * active, bytes_up=nbytes * active, seconds=float(seconds)
        )


def check_step(step: Step, settings: Settings) -> None:
    """Raise unless a step is a plain named function that hides no server value."""
    name = getattr(step, "__qualname__", None)
    if not inspect.isfunction(step) or name is None or "<locals>" in name or "<lambda>" in name:
        raise ValueError(
            f"a client step must be a module-level function, got {step!r}. Both sides of a wire "
            "know it by its name, and it cannot hide a server value in a closure."
        )
    for setting, value in settings.items():
        if isinstance(value, eqx.Module) and not isinstance(
            value, Placed | Cached | Memory | PerClient
        ):
            continue  # a problem or a part, which both sides have
        if any(np.ndim(leaf) > 0 for leaf in jax.tree.leaves(value)) or isinstance(value, Placed):
            raise ValueError(
                f"{name}: setting {setting!r} holds an array. Settings are configuration that both "
                "sides know; send arrays with fed.broadcast so that they are counted."
            )


def _loop(n, body, init: Tree) -> Tree:
    value = init
    for i in range(int(n)):
        value = body(jnp.asarray(i, jnp.int32), value)
    return value


class _EagerRunner(AbstractRunner):
    def __init__(self, program: Program, algorithms: Sequence[AbstractAlgorithm]):
        population = jax.tree.map(jnp.asarray, program.population)
        self._program = Program(program.problem, population, program.clock, program.aggregate)
        self._algorithms = [numbers_to_arrays(a) for a in algorithms]

    def advance(
        self, states: Sequence[Tree], keys: Sequence[Key], first: int, n: Sequence[int]
    ) -> list[Progress]:
        lanes = zip(self._algorithms, states, keys, n, strict=True)
        return [self._one(algorithm, state, key, first, n) for algorithm, state, key, n in lanes]

    def _one(self, algorithm, state, key, first, n) -> Progress:
        ledgers: list[Ledger] = []
        is_finite = True
        for round in range(first, first + n):
            fed = EagerFederation(self._program, round)
            state = algorithm.round(
                fed, self._program.problem, state, jax.random.fold_in(key, round)
            )
            ledgers.append(fed.ledger)
            state = later(state, jnp.asarray(fed.now, float))
            is_finite = bool(all_finite(state))
            if not is_finite:
                break
        return Progress(state, ledgers, is_finite)


class Eager(AbstractEngine):
    """Runs a program one operation at a time: slow, easy to look into, and strict."""

    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Make ready."""
        program.population.check_rows("the eager engine")
        return _EagerRunner(program, algorithms)
