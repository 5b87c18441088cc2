"""Who takes part: cohorts, and the rules that draw them.

    rule                different     mean is unbiased
    Everyone            yes           exact
    Uniform(n)          yes           if all clients have the same weight
    Proportional(n)     yes           always
    WithReplacement(n)  no            if all clients have the same weight
    Weighted(n)         no            always
    Fixed(clients)      yes           no: it is the mean of these clients
    Poisson(rate)       yes           in a private run; otherwise as Uniform

``fed.mean`` estimates the mean of all clients by their weights. Slot weights always sum to one, as
an average of iterates needs: with the Horvitz-Thompson weights N/n w_i of a uniform cohort the sum
would be one only on average, and every exchange would scale the iterate itself by a random factor.
After a uniform draw the weights are therefore divided by their sum, which is random too if weights
differ: the mean is biased towards small clients, by several per cent for small cohorts.
``Proportional`` and ``Weighted`` draw heavy clients more often instead.

A plain number, ``clients=n``, means ``Uniform(n)``: it is what the papers draw, it is unbiased for
the equal weights that a population has by default, and it hears every client equally often, which
what clients remember between rounds depends on (SCAFFOLD's control variates). If you give a
population unequal weights, use ``Proportional(n)``.
"""

import abc
import itertools
from dataclasses import dataclass, field, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from rookery import check
from rookery.rng import below, distinct
from rookery.types import Key

_tokens = itertools.count()


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)  # made and read so often that a plain class is worth having
class Cohort:
    """Some clients, in slots; a slot may be inactive.

    Attributes:
        ids: the client in each slot.
        active: whether the slot takes part; an inactive one sends and receives nothing.
        occurrence: how often the same client is in an earlier slot, or None if a client cannot be
            in two slots. Folded into keys, so that two slots of one client differ.
        token: tells cohorts apart while a round is traced.
        counts: what each slot counts in a mean, up to a factor; None takes the clients' weights.

    >>> cohort = Fixed((0, 2)).draw(jax.random.key(0), 4, None)
    >>> cohort.ids.tolist(), cohort.active.tolist()
    ([0, 2], [True, True])
    """

    ids: Int[Array, " slots"]
    active: Bool[Array, " slots"]
    occurrence: Int[Array, " slots"] | None = None
    token: int = field(metadata={"static": True}, default_factory=lambda: next(_tokens))
    counts: Float[Array, " slots"] | None = None

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

    def where(self, active: Bool[Array, " slots"]) -> "Cohort":
        """The same slots, active only where ``active`` is true."""
        return Cohort(self.ids, self.active & active, self.occurrence, counts=self.counts)

    def reordered(self, order: Int[Array, " slots"]) -> "Cohort":
        """The same slots in another order."""
        rows = (self.ids, self.active, self.occurrence, self.counts)
        ids, active, occurrence, counts = jax.tree.map(lambda a: a[order], rows)
        return Cohort(ids, active, occurrence, counts=counts)


class AbstractParticipation(eqx.Module):
    """A rule that draws a cohort.

    >>> isinstance(Everyone(), AbstractParticipation)
    True
    """

    @abc.abstractmethod
    def draw(self, key: Key, n_clients: int, probabilities: Float[Array, " clients"]) -> Cohort:
        """A cohort out of ``n_clients``; only some rules look at the probabilities."""

    @abc.abstractmethod
    def check(self, n_clients: int) -> None:
        """Raise unless the rule fits a population of this size."""


class AbstractOfSize(AbstractParticipation):
    """A rule for cohorts with ``n`` slots, whatever the population.

    >>> Uniform(3).n
    3
    """

    n: int = eqx.field(static=True)

    def __check_init__(self):
        check.count("the number of clients per exchange", self.n)


class Everyone(AbstractParticipation):
    """All clients, in the order of their ids.

    >>> import jax
    >>> Everyone().draw(jax.random.key(0), 3, None).ids.tolist()
    [0, 1, 2]
    """

    def draw(self, key, n_clients, probabilities):
        """All clients."""
        return _all_active(jnp.arange(n_clients, dtype=jnp.int32))

    def check(self, n_clients):
        """Always fits."""


@partial(jax.jit, static_argnums=(1, 2), inline=True)  # outside of a program it compiles once
def _distinct(key: Key, n: int, n_clients: int) -> jax.Array:
    return distinct(key, n, n_clients)


class Uniform(AbstractOfSize):
    """``n`` different clients, every set of n equally likely.

    A mean divides by the sum of the weights drawn. If clients' weights differ, it is biased; use
    :class:`Proportional` then.

    >>> import jax
    >>> len(Uniform(2).draw(jax.random.key(0), 10, None))
    2
    """

    def draw(self, key, n_clients, probabilities):
        """Floyd's algorithm: n draws, whatever the size of the population."""
        if self.n == n_clients:
            return Everyone().draw(key, n_clients, probabilities)
        return _all_active(_distinct(key, self.n, n_clients))

    def check(self, n_clients):
        """There must be n different clients."""
        _check_enough(self.n, n_clients)


class Proportional(AbstractOfSize):
    """``n`` different clients, each drawn with a probability proportional to its weight.

    The mean is unbiased whatever the weights are, and slot weights sum to one. A client that would
    have a probability above one is always drawn and counts by its weight; the other slots count
    equally. For equal weights it is :class:`Uniform`.

    Clients are put in random order on a line, each as long as its probability, and those at a
    random offset and at every unit after it are drawn (systematic sampling).

    >>> import jax
    >>> import jax.numpy as jnp
    >>> cohort = Proportional(2).draw(jax.random.key(0), 4, jnp.array([0.7, 0.1, 0.1, 0.1]))
    >>> 0 in cohort.ids.tolist()
    True
    """

    def draw(self, key, n_clients, probabilities):
        """Systematic sampling; the probabilities are those passed, otherwise the weights."""
        order_key, offset_key = jax.random.split(key)
        order = jax.random.permutation(order_key, n_clients).astype(jnp.int32)
        chance = inclusion(probabilities, self.n)[order]
        ends = jnp.cumsum(chance)
        # exactly n units long in spite of rounding, unless too few clients have any weight
        is_full = jnp.sum(probabilities > 0) >= self.n
        ends = jnp.where(is_full, ends * (self.n / ends[-1]), ends)
        slots = jnp.arange(self.n, dtype=jnp.int32)
        points = jax.random.uniform(offset_key, (), ends.dtype) + slots.astype(ends.dtype)
        found = jnp.searchsorted(ends, points, side="right").astype(jnp.int32) - slots
        # different clients in spite of rounding: positions increase
        found = jnp.minimum(lax.cummax(found), n_clients - self.n) + slots
        active = points < ends[-1]
        counts = probabilities[order][found] / jnp.where(active, chance[found], 1.0)
        return Cohort(order[found], active, counts=counts)

    def check(self, n_clients):
        """There must be n different clients."""
        _check_enough(self.n, n_clients)


class WithReplacement(AbstractOfSize):
    """``n`` slots filled independently and uniformly; a client may fill several.

    >>> import jax
    >>> len(WithReplacement(5).draw(jax.random.key(0), 2, None))
    5
    """

    def draw(self, key, n_clients, probabilities):
        """Independent uniform draws."""
        return _independent(below(key, (self.n,), n_clients))

    def check(self, n_clients):
        """Always fits."""


class Weighted(AbstractOfSize):
    """``n`` slots filled independently with given probabilities; in a mean they count equally.

    The probabilities are those passed to ``fed.sample``, otherwise the clients' weights. The mean
    is unbiased.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> Weighted(3).draw(jax.random.key(0), 2, jnp.array([0.0, 1.0])).ids.tolist()
    [1, 1, 1]
    """

    def draw(self, key, n_clients, probabilities):
        """Independent draws by inversion."""
        edges = jnp.cumsum(probabilities)
        drawn = jax.random.uniform(key, (self.n,), edges.dtype) * edges[-1]
        ids = jnp.searchsorted(edges, drawn, side="right").astype(jnp.int32)
        cohort = _independent(jnp.minimum(ids, n_clients - 1))
        return replace(cohort, counts=jnp.ones(self.n))

    def check(self, n_clients):
        """Always fits."""


class Fixed(AbstractParticipation):
    """The same given clients every time.

    >>> Fixed((0, 3)).check(n_clients=3)
    Traceback (most recent call last):
    ValueError: no such client: [3]. Clients are 0 to 2.
    """

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


class Poisson(AbstractParticipation):
    """Every client with the same probability, independently of the others.

    It is the rule that privacy accountants like best (:mod:`rookery.program.privacy`). A cohort has
    a slot for each client, and all of them are computed. A plain mean divides by the weights drawn;
    if nobody is, it is not a number, so choose a rate at which that does not happen. A private mean
    divides by the expected weight.

    >>> import jax
    >>> cohort = Poisson(0.5).draw(jax.random.key(0), 6, None)
    >>> len(cohort), int(cohort.active.sum())
    (6, 3)

    Args:
        rate: the probability, above 0 and at most 1.
    """

    rate: float = eqx.field(static=True)

    def __check_init__(self):
        check.fraction("Poisson.rate", self.rate)

    def draw(self, key, n_clients, probabilities):
        """One draw for each client."""
        active = jax.random.bernoulli(key, self.rate, (n_clients,))
        return Cohort(jnp.arange(n_clients, dtype=jnp.int32), active)

    def check(self, n_clients):
        """Always fits."""


def participation(rule: AbstractParticipation | int | None) -> AbstractParticipation:
    """A rule from its short form: a number is :class:`Uniform`, None is :class:`Everyone`.

    >>> participation(3), participation(None)
    (Uniform(n=3), Everyone())
    """
    if rule is None:
        return Everyone()
    if isinstance(rule, AbstractParticipation):
        return rule
    return Uniform(check.count("the number of clients per exchange", rule))


def inclusion(weights: jax.Array, n: float) -> jax.Array:
    """Probabilities that sum to n: proportional to the weights, but at most one.

    >>> inclusion(jnp.array([0.75, 0.125, 0.125]), 2).tolist()
    [1.0, 0.5, 0.5]
    """
    heaviest = jnp.sort(weights, descending=True)
    k = jnp.arange(weights.shape[0], dtype=weights.dtype)
    rest = jnp.cumsum(heaviest[::-1])[::-1]  # the weight of all but the k heaviest
    most = jnp.finfo(weights.dtype).max  # then every client with a positive weight is certain
    factor = jnp.where(rest > 0, (n - k) / jnp.where(rest > 0, rest, 1.0), most)
    # the k heaviest are certain, for the smallest k that leaves nobody else above one
    fits = factor * heaviest <= 1
    return jnp.minimum(factor[jnp.argmax(fits)] * weights, 1.0)


def _check_enough(n: int, n_clients: int) -> None:
    if n > n_clients:
        raise ValueError(
            f"cannot draw {n} different clients: there are only {n_clients}. "
            f"Use at most {n_clients}, or WithReplacement({n})."
        )


def _all_active(ids: jax.Array) -> Cohort:
    return Cohort(ids, jnp.ones(ids.shape, bool))


def _independent(ids: jax.Array) -> Cohort:
    slots = jnp.arange(ids.shape[0])
    earlier = (ids[:, None] == ids[None, :]) & (slots[None, :] < slots[:, None])
    return Cohort(ids, jnp.ones(ids.shape, bool), jnp.sum(earlier, axis=1, dtype=jnp.int32))
