"""Cutting planes: their values at an iterate, which are kept, and how their multipliers move.

Cut l is  a_l·v + Σ_i b_il·y_i + c_l·z + k_l <= 0,  with a multiplier λ_l >= 0. The number
of slots is fixed; all arrays have one entry per slot, and an empty slot has λ = 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import tree
from rookery.algorithms.adbo.admm import total
from rookery.program.federation import AbstractFederation
from rookery.program.memory import PerClient
from rookery.types import Tree


class Cuts(NamedTuple):
    """The slots.

    Attributes:
        a: of v.
        b: of every client's y_i.
        c: of z.
        k: the constants.
        multipliers: λ.
        is_used: which slots hold a cut.
    """

    a: Tree
    b: PerClient
    c: Tree
    k: jax.Array
    multipliers: jax.Array
    is_used: jax.Array

    @classmethod
    def none(cls, slots: int, x: Tree, y: Tree) -> "Cuts":
        """Empty slots, for variables of these shapes."""

        def zeros(tree):
            return jax.tree.map(lambda a: jnp.zeros((slots, *jnp.shape(a)), a.dtype), tree)

        number = jnp.zeros(slots, jnp.result_type(*jax.tree.leaves(y)))
        used = jnp.zeros(slots, bool)
        return cls(zeros(x), PerClient.of(zeros(y)), zeros(y), number, number, used)

    def force_on_v(self) -> Tree:
        """Σ_l λ_l a_l."""
        return _combined(self.multipliers, self.a)

    def force_on_clients(self) -> Tree:
        """Σ_l λ_l b_il, a row for each client."""
        return jax.vmap(_combined, (None, 0))(self.multipliers, self.b.rows)

    def force_on_z(self) -> Tree:
        """Σ_l λ_l c_l."""
        return _combined(self.multipliers, self.c)

    def ascend(self, fed: AbstractFederation, v: Tree, y: Tree, z: Tree, lr, damping) -> "Cuts":
        """λ_l <- max(0, λ_l + lr (cut_l(v, y, z) - damping λ_l))."""

        def height(a, b, c):
            return linear_part(fed, (a, b, c), v, y, z)

        old = self.multipliers
        heights = jax.vmap(height, (0, 1, 0))(self.a, self.b.rows, self.c).astype(old.dtype)
        slope = tree.axpy(-damping, old, heights + self.k)
        moved = jnp.maximum(tree.axpy(lr, slope, old), 0)
        return self._replace(multipliers=jnp.where(self.is_used, moved, 0))

    def add(self, a: Tree, b: Tree, c: Tree, k: jax.Array) -> "Cuts":
        """Drop cuts with λ = 0, then put a new one, with λ = 0, into a free slot.

        If there is none it takes the place of the cut with the smallest λ.
        """
        used = self.is_used & (self.multipliers > 0)
        slot = jnp.argmin(jnp.where(used, self.multipliers, -1))

        def put(table, row):
            return table.at[slot].set(row)

        def put_rows(table, rows):
            return table.at[:, slot].set(rows)

        return Cuts(
            a=jax.tree.map(put, self.a, a),
            b=PerClient(jax.tree.map(put_rows, self.b.rows, b)),
            c=jax.tree.map(put, self.c, c),
            k=put(self.k, k.astype(self.k.dtype)),
            multipliers=put(self.multipliers, 0),
            is_used=put(used, True),
        )


def linear_part(fed: AbstractFederation, cut: tuple[Tree, Tree, Tree], v: Tree, y: Tree, z: Tree):
    """a·v + Σ_i b_i·y_i + c·z."""
    a, b, c = cut
    return tree.dot(a, v) + total(fed, jax.vmap(tree.dot)(b, y)) + tree.dot(c, z)


def _combined(multipliers: jax.Array, slots: Tree) -> Tree:
    return jax.tree.map(lambda s: jnp.tensordot(multipliers.astype(s.dtype), s, 1), slots)
