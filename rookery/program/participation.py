"""Who takes part: cohorts, and the rules that draw them."""

import abc
import itertools
from dataclasses import dataclass, field
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from rookery import check
from rookery.rng import below
from rookery.types import Key

_tokens = itertools.count()


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)  # made and read so often that a plain class is worth having
class Cohort:
    """Some clients, in slots; a slot may be switched off.

    Attributes:
        ids: the client in each slot.
        active: whether the slot takes part; one that does not sends and receives nothing.
        occurrence: how often the same client stands in an earlier slot, or None when a client
            cannot stand in two slots. Folded into keys, so that two slots of one client differ.
        token: tells cohorts apart while a round is traced.
        is_weighted: whether clients were drawn by their weights, so that a mean takes the slots
            as equals and does not weigh them again.
    """

    ids: jax.Array
    active: jax.Array
    occurrence: jax.Array | None = None
    token: int = field(metadata={"static": True}, default_factory=lambda: next(_tokens))
    is_weighted: bool = field(metadata={"static": True}, default=False)

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def distinct(self) -> jax.Array:
        """Which slots are active and are the first active slot of their client."""
        if self.occurrence is None:
            return self.active
        slots = jnp.arange(len(self))
        same = (self.ids[:, None] == self.ids[None, :]) & self.active[None, :]
        return self.active & ~jnp.any(same & (slots[None, :] < slots[:, None]), axis=1)

    def where(self, active: jax.Array) -> "Cohort":
        """The same slots with only those taking part where ``active`` is true."""
        return Cohort(self.ids, self.active & active, self.occurrence, is_weighted=self.is_weighted)


class AbstractParticipation(eqx.Module):
    """A rule that draws a cohort."""

    @abc.abstractmethod
    def draw(self, key: Key, n_clients: int, probabilities: jax.Array) -> Cohort:
        """A cohort out of ``n_clients``; only some rules look at the probabilities."""

    @abc.abstractmethod
    def check(self, n_clients: int) -> None:
        """Raise unless the rule fits a population of this size."""


class Everyone(AbstractParticipation):
    """All clients, in the order of their ids."""

    def draw(self, key, n_clients, probabilities):
        """All clients."""
        return _all_active(jnp.arange(n_clients, dtype=jnp.int32))

    def check(self, n_clients):
        """Always fits."""


@partial(jax.jit, static_argnums=(1, 2), inline=True)  # outside of a program it compiles once
def _floyd(key: Key, n: int, n_clients: int) -> jax.Array:
    """``n`` different numbers below ``n_clients``, by Floyd's algorithm."""
    first = n_clients - n

    def add(i, chosen):
        last = first + i
        drawn = below(jax.random.fold_in(key, i), (), last + 1)
        # a client drawn before makes room for the newest candidate
        pick = jnp.where(jnp.any(chosen == drawn), last.astype(jnp.int32), drawn)
        return chosen.at[i].set(pick)

    return lax.fori_loop(0, n, add, jnp.full(n, -1, jnp.int32))


class Uniform(AbstractParticipation):
    """``n`` different clients, every set of n equally likely.

    A mean divides by the weights of those drawn; with unequal weights it is therefore exact on
    average only as n grows. :class:`Weighted` has no such bias.
    """

    n: int = eqx.field(static=True)

    def __check_init__(self):
        check.count("the number of clients per exchange", self.n)

    def draw(self, key, n_clients, probabilities):
        """Floyd's algorithm: n draws, whatever the size of the population."""
        if self.n == n_clients:
            return Everyone().draw(key, n_clients, probabilities)
        return _all_active(_floyd(key, self.n, n_clients))

    def check(self, n_clients):
        """There must be n different clients."""
        if self.n > n_clients:
            raise ValueError(
                f"{self.n} different clients were asked for, but there are only {n_clients}. "
                f"Use at most {n_clients}, or WithReplacement({self.n})."
            )


class WithReplacement(AbstractParticipation):
    """``n`` slots filled independently; a client may fill several."""

    n: int = eqx.field(static=True)

    def __check_init__(self):
        check.count("the number of clients per exchange", self.n)

    def draw(self, key, n_clients, probabilities):
        """Independent uniform draws."""
        return _independent(below(key, (self.n,), n_clients))

    def check(self, n_clients):
        """Always fits."""


class Weighted(AbstractParticipation):
    """``n`` slots filled independently with given probabilities; a mean takes them as equals.

    The probabilities are those passed to ``fed.sample``, otherwise the clients' weights.
    """

    n: int = eqx.field(static=True)

    def __check_init__(self):
        check.count("the number of clients per exchange", self.n)

    def draw(self, key, n_clients, probabilities):
        """Independent draws by inversion."""
        edges = jnp.cumsum(probabilities)
        drawn = jax.random.uniform(key, (self.n,), edges.dtype) * edges[-1]
        ids = jnp.searchsorted(edges, drawn, side="right").astype(jnp.int32)
        cohort = _independent(jnp.minimum(ids, n_clients - 1))
        return Cohort(cohort.ids, cohort.active, cohort.occurrence, is_weighted=True)

    def check(self, n_clients):
        """Always fits."""


class Fixed(AbstractParticipation):
    """The same given clients every time."""

    clients: tuple[int, ...] = eqx.field(static=True, converter=tuple)

    def __check_init__(self):
        if not self.clients:
            raise ValueError("Fixed needs at least one client.")
        if len(set(self.clients)) < len(self.clients):
            raise ValueError(f"Fixed needs different clients, got {self.clients}.")

    def draw(self, key, n_clients, probabilities):
        """The given clients."""
        return _all_active(jnp.array(self.clients, jnp.int32))

    def check(self, n_clients):
        """All ids must exist."""
        strange = [c for c in self.clients if not 0 <= c < n_clients]
        if strange:
            raise ValueError(f"no such client: {strange}. Clients are 0 to {n_clients - 1}.")


def participation(rule: AbstractParticipation | int | None) -> AbstractParticipation:
    """A rule from its short form: a number means that many different clients, None everyone."""
    if rule is None:
        return Everyone()
    if isinstance(rule, AbstractParticipation):
        return rule
    return Uniform(check.count("the number of clients per exchange", rule))


def _all_active(ids: jax.Array) -> Cohort:
    return Cohort(ids, jnp.ones(ids.shape, bool))


def _independent(ids: jax.Array) -> Cohort:
    slots = jnp.arange(ids.shape[0])
    earlier = (ids[:, None] == ids[None, :]) & (slots[None, :] < slots[:, None])
    return Cohort(ids, jnp.ones(ids.shape, bool), jnp.sum(earlier, axis=1, dtype=jnp.int32))
