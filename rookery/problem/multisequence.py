"""Multi-sequence problems: the common root of several averaged maps."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.problem import oracles
from rookery.types import Sample, Tree


class MultiSequence(eqx.Module):
    """Find (x, z_1, ..., z_N) with  mean main = 0  and  mean sequences[n - 1] = 0  for every n.

    Every map takes ``(blocks, example)``, where ``blocks = (x, z_1, ..., z_N)``, and gives a pytree
    shaped like its own block. Gradients are one kind of map; nothing here needs to be one.

    Args:
        main: the map whose root fixes x.
        sequences: the maps whose roots fix z_1 to z_N.
        split: which part of a client's data the maps are averaged over.
    """

    main: Callable[..., Tree]
    sequences: tuple[Callable[..., Tree], ...] = eqx.field(converter=tuple)
    split: str = eqx.field(static=True, default="train")

    def __check_init__(self):
        for name, fn in self._named():
            if not callable(fn):
                raise TypeError(f"{name} must be a function, got {fn!r}.")

    def _named(self) -> list[tuple[str, Callable[..., Tree]]]:
        return [("main", self.main)] + [
            (f"sequences[{n}]", fn) for n, fn in enumerate(self.sequences)
        ]

    def check(self, variables: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless there is one block per map and every map is shaped like its block."""
        named = self._named()
        if len(variables) != len(named):
            raise ValueError(
                f"{len(named)} maps need {len(named)} blocks (x first), got {len(variables)}."
            )
        row = example(self.split)
        for (name, fn), block in zip(named, variables, strict=True):
            out = oracles.check_map(name, fn, variables, row)
            want = jax.eval_shape(lambda b: jax.tree.map(jnp.asarray, b), block)
            oracles.check_like(name, out, "its block", want)

    def maps(self, blocks: tuple[Tree, ...], sample: Sample) -> tuple[Tree, ...]:
        """All mean maps at the blocks, on one sample."""
        sample.charge(gradients=1)

        def every_map(blocks, row):
            return tuple(fn(blocks, row) for _, fn in self._named())

        return oracles.map_value(every_map, (blocks,), sample)
