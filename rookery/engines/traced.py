"""The words, traced: a cohort is a vmap, loops are lax loops, the ledger is arrays in the carry."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rookery import tree
from rookery.clients.local_client import LocalClient
from rookery.engines import traced_poll, uint64
from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import (
    NO_SETTINGS,
    AbstractFederation,
    Cached,
    Placed,
    Step,
    client_key,
    common_cohort,
)
from rookery.program.ledger import Ledger
from rookery.program.memory import Memory, check_keep, check_recall
from rookery.program.participation import Cohort
from rookery.program.polling import PollResult, all_finite, later
from rookery.types import Key, Tree


class RoundCosts(NamedTuple):
    """The ledger of one round as arrays."""

    exchanges: jax.Array
    messages: jax.Array
    bytes_down: jax.Array
    bytes_up: jax.Array
    gradients: jax.Array
    hessian_vectors: jax.Array
    seconds: jax.Array


def _empty_books() -> RoundCosts:
    small, wide = jnp.zeros((), jnp.uint32), uint64.zero()
    return RoundCosts(small, small, wide, wide, wide, wide, jnp.zeros(()))


class TracedFederation(AbstractFederation):
    """The words, traced. It lives while a round is traced; loops carry what it has noted."""

    def __init__(self, program: Program, round, clients_at_once: int | None):
        population = program.population
        weights = jnp.asarray(population.weights, float)
        super().__init__(population.n_clients, weights, round, program.aggregate)
        self.population = population
        self.clock = program.clock
        self.clients_at_once = clients_at_once
        self.books = _empty_books()
        self._holders: dict[int, jax.Array] = {}  # shared value -> which clients hold it
        self._pending: dict[int, jax.Array] = {}  # cohort -> bytes sent since its last reply

    def map(self, step: Step, *values: Placed, key: Key | None = None, **settings: Any) -> Placed:
        """One vmap over the cohort, or several of ``clients_at_once`` clients one after another."""
        cohort = common_cohort(step, values)
        stacked = [v.value for v in values if v.is_stacked]

        def one(slot):
            id, occurrence, own = slot
            client = LocalClient(self.population, id, client_key(key, id, occurrence), _loop)
            rows = iter(own)
            arguments = [next(rows) if v.is_stacked else v.value for v in values]
            return step(client, *arguments, **settings), client.work

        slots = (cohort.ids, cohort.occurrence, stacked)
        if self.clients_at_once is None or len(cohort) <= self.clients_at_once:
            replies, work = jax.vmap(one)(slots)
        else:
            replies, work = lax.map(one, slots, batch_size=self.clients_at_once)
        gradients, products = (jnp.where(cohort.active, w, jnp.uint32(0)) for w in work)
        self.books = self.books._replace(
            gradients=uint64.add_all(self.books.gradients, gradients),
            hessian_vectors=uint64.add_all(self.books.hessian_vectors, products),
        )
        return Placed(cohort, replies, is_stacked=True)

    def recall(self, cohort: Cohort, memory: Memory) -> Placed:
        """A gather of rows."""
        check_recall(cohort, memory, self.n_clients)
        rows = jax.tree.map(lambda a: a[cohort.ids], memory.rows)
        return Placed(cohort, rows, is_stacked=True)

    def keep(self, memory: Memory, placed: Placed) -> Memory:
        """A scatter of rows; slots that are switched off aim past the end and are dropped."""
        rows, cohort = self._replies(placed)
        check_recall(cohort, memory, self.n_clients)
        check_keep(memory, rows)
        slots = jnp.where(cohort.active, cohort.ids, self.n_clients)
        new = jax.tree.map(lambda a, r: a.at[slots].set(r, mode="drop"), memory.rows, rows)
        return Memory(new, memory.n_clients)

    def repeat(self, n, body, init):
        """A ``fori_loop`` whose carry takes the books along."""

        def once(i, carry):
            value, (self.books, self._holders, self._pending) = carry
            holders, pending = tuple(self._holders), tuple(self._pending)
            value = body(i, value)
            # what was shared or drawn inside the body ends with it
            self._holders = {token: self._holders[token] for token in holders}
            self._pending = {token: self._pending[token] for token in pending}
            return value, (self.books, self._holders, self._pending)

        notes = (self.books, self._holders, self._pending)
        value, (self.books, self._holders, self._pending) = lax.fori_loop(0, n, once, (init, notes))
        return value

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """An exact event simulation; see :mod:`rookery.engines.traced_poll`."""
        return traced_poll.poll(self, jobs, step, values, rules, key, settings)

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """A loop over the set, some clients at a time."""
        return traced_poll.ask(self, who, step, values, key, settings)

    def sample(self, rule, key, probabilities=None) -> Cohort:
        """A fresh cohort, to which nothing has been sent yet."""
        return self._known(super().sample(rule, key, probabilities))

    def _known(self, cohort: Cohort) -> Cohort:
        if cohort.token not in self._pending:
            self._pending[cohort.token] = jnp.zeros(len(cohort))
        return cohort

    def _hold(self, shared: Cached, holders: jax.Array) -> None:
        self._holders[shared.token] = holders

    def holders(self, shared: Cached) -> jax.Array:
        """Which clients hold a shared value."""
        if shared.token not in self._holders:
            raise ValueError(
                "a value shared inside fed.repeat was used after the loop ended. Share it before."
            )
        return self._holders[shared.token]

    def _send(self, cohort: Cohort, slots: jax.Array, nbytes: int) -> None:
        self._known(cohort)
        taking = jnp.sum(slots, dtype=jnp.uint32)
        self.books = self.books._replace(
            bytes_down=uint64.add(self.books.bytes_down, nbytes, taking, len(cohort))
        )
        self._pending[cohort.token] = self._pending[cohort.token] + jnp.where(slots, nbytes, 0.0)

    def _send_to_newcomers(self, cohort: Cohort, shared: Cached) -> None:
        holders = self.holders(shared)
        self._send(cohort, cohort.distinct & ~holders[cohort.ids], tree.nbytes(shared.value))
        self._holders[shared.token] = holders.at[cohort.ids].max(cohort.active)

    def _exchange(self, cohort: Cohort, nbytes: int) -> None:
        self._known(cohort)
        active = jnp.sum(cohort.active, dtype=jnp.uint32)
        seconds = self.clock.exchange_seconds(
            self.kind,
            self.round,
            self.books.exchanges,
            cohort.ids,
            cohort.active,
            self._pending[cohort.token] + nbytes,
        )
        self.books = self.books._replace(
            exchanges=self.books.exchanges + jnp.uint32(1),
            messages=self.books.messages + jnp.uint32(2) * active,
            bytes_up=uint64.add(self.books.bytes_up, nbytes, active, len(cohort)),
            seconds=self.books.seconds + seconds,
        )
        self._pending[cohort.token] = jnp.zeros(len(cohort))


def _loop(n, body, init):
    return lax.fori_loop(0, n, body, init)


def one_round(
    program: Program,
    algorithm: AbstractAlgorithm,
    clients_at_once: int | None,
    state: Tree,
    key: Key,
    round,
) -> tuple[Tree, RoundCosts]:
    """Trace one round of a program: pure, so it can be jitted and mapped over."""
    fed = TracedFederation(program, round, clients_at_once)
    state = algorithm.round(fed, program.problem, state, jax.random.fold_in(key, round))
    return later(state, fed.books.seconds), fed.books


def many_rounds(
    program: Program,
    algorithm: AbstractAlgorithm,
    clients_at_once: int | None,
    capacity: int,
    state: Tree,
    key: Key,
    first,
    n,
) -> tuple[Tree, RoundCosts, jax.Array]:
    """``n <= capacity`` rounds, n traced: the state, the books of each round, the rounds done.

    The loop ends early after a round that left something not finite.
    """
    books = jax.tree.map(lambda a: jnp.zeros((capacity, *a.shape), a.dtype), _empty_books())

    def goes_on(carry):
        done, is_finite, _, _ = carry
        return (done < n) & is_finite

    def once(carry):
        done, _, state, books = carry
        state, book = one_round(program, algorithm, clients_at_once, state, key, first + done)
        books = jax.tree.map(lambda all, one: all.at[done].set(one), books, book)
        return done + 1, all_finite(state), state, books

    done, is_finite, state, books = lax.while_loop(
        goes_on, once, (jnp.zeros((), jnp.int32), jnp.array(True), state, books)
    )
    return state, books, jnp.stack([done, is_finite.astype(jnp.int32)])


def read_books(books: RoundCosts) -> list[Ledger]:
    """The ledgers out of stacked books, one per round."""
    rounds = zip(*jax.device_get(books), strict=True)
    return [
        Ledger(
            exchanges=int(book.exchanges),
            messages=int(book.messages),
            bytes_down=uint64.read(book.bytes_down),
            bytes_up=uint64.read(book.bytes_up),
            gradients=uint64.read(book.gradients),
            hessian_vectors=uint64.read(book.hessian_vectors),
            seconds=float(book.seconds),
        )
        for book in (RoundCosts(*one) for one in rounds)
    ]
