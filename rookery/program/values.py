"""Values that are not the server's alone: placed on a cohort, or cached by clients."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from rookery.program.participation import Cohort
from rookery.types import Tree

_tokens = itertools.count()


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Placed:
    """One value per client of a cohort: the same for all, or stacked along the first axis.

    ``fed.broadcast``, ``fed.scatter``, ``fed.map`` and ``fed.recall`` make it.

    >>> import rookery as rk
    >>> cohort = rk.participation.Uniform(2).draw(jax.random.key(0), 5, jnp.full(5, 0.2))
    >>> Placed(cohort, jnp.zeros(4), is_stacked=False).rows().shape
    (2, 4)

    Attributes:
        cohort: the clients.
        value: of each, or of all.
        is_stacked: whether every client has its own.
        mean: by the slots' weights, if the engine has summed the values as they came.
    """

    cohort: Cohort
    value: Tree
    is_stacked: bool = field(metadata={"static": True})
    mean: Tree = None

    def __iter__(self) -> Iterator["Placed"]:
        """The parts of a placed tuple."""
        if not isinstance(self.value, tuple):
            raise TypeError("only a placed tuple can be unpacked")
        means = self.mean if isinstance(self.mean, tuple) else (None,) * len(self.value)
        pairs = zip(self.value, means, strict=True)
        return iter(Placed(self.cohort, part, self.is_stacked, mean) for part, mean in pairs)

    def rows(self) -> Tree:
        """The values of all slots, stacked along the first axis."""
        if self.is_stacked:
            return self.value
        n = len(self.cohort)
        return jax.tree.map(lambda a: jnp.broadcast_to(a, (n, *jnp.shape(a))), self.value)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Cached:
    """A server value that a client keeps once it has it: it is sent to newcomers only.

    ``fed.cache`` makes it.
    """

    value: Tree
    token: int = field(metadata={"static": True}, default_factory=lambda: next(_tokens))
