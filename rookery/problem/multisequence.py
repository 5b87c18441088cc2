"""Multi-sequence problems: the common root of several averaged maps."""

from collections.abc import Callable

import equinox as eqx

from rookery.loss import AbstractOver, examples, wants_key
from rookery.problem import oracles, validation
from rookery.problem.splits import AbstractOneSplit
from rookery.types import Key, Sample, Tree


class MultiSequence(AbstractOneSplit):
    """Find (x, z_1, ..., z_N) with  mean main = 0  and  mean sequences[n - 1] = 0  for every n.

    Every map takes ``(blocks, example)``, where ``blocks = (x, z_1, ..., z_N)``, and returns a
    pytree shaped like its own block. A map may be a gradient, but need not be.

    Args:
        main: the map whose root is x.
        sequences: the maps whose roots are z_1 to z_N.
        split: the split of a client's data that the maps are averaged over.

    >>> import jax.numpy as jnp
    >>> from rookery.problem.sample import Rows
    >>> problem = MultiSequence(
    ...     main=lambda blocks, row: blocks[0] - blocks[1],
    ...     sequences=[lambda blocks, row: blocks[1] - row],
    ... )
    >>> problem.variables
    ('x', 'z_1')
    >>> blocks = jnp.array(3.0), jnp.array(2.0)
    >>> [float(m) for m in problem.maps(blocks, Rows(jnp.array([0.0, 2.0])))]
    [1.0, 1.0]
    """

    main: Callable[..., Tree]
    sequences: tuple[Callable[..., Tree], ...] = eqx.field(converter=tuple)
    split: str = eqx.field(static=True, default="train", kw_only=True)

    def __check_init__(self):
        for name, fn in self._named():
            validation.check_function(name, fn)

    def _named(self) -> list[tuple[str, Callable[..., Tree]]]:
        return [("main", self.main)] + [
            (f"sequences[{n}]", fn) for n, fn in enumerate(self.sequences)
        ]

    @property
    def variables(self) -> tuple[str, ...]:
        """x and z_1 to z_N."""
        return ("x", *(f"z_{n}" for n in range(1, len(self.sequences) + 1)))

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless there is one block per map and every map is shaped like its block."""
        validation.check_start(self, start)
        row = example(self.split)
        for (name, fn), block in zip(self._named(), start, strict=True):
            out = validation.check_map(name, fn, tuple(start), row)
            validation.check_like(name, out, "its block", block)

    def maps(self, blocks: tuple[Tree, ...], sample: Sample) -> tuple[Tree, ...]:
        """All mean maps at the blocks, on one sample."""
        named = self._named()
        values: dict[str, Tree] = {}
        for kind in dict.fromkeys(map(_kind, named)):  # maps of rows, of pairs, of batches
            group = [(name, fn) for name, fn in named if _kind((name, fn)) == kind]
            own = examples(group[0][1], sample)
            own.charge(gradients=1)
            values |= oracles.map_value(_together(dict(group)), (blocks,), own)
        return tuple(values[name] for name, _ in named)


def _kind(named: tuple[str, Callable[..., Tree]]) -> type | None:
    fn = named[1]
    return type(fn) if isinstance(fn, AbstractOver) else None


def _together(maps: dict[str, Callable[..., Tree]]) -> Callable[..., dict[str, Tree]]:
    """All maps of one example in one function."""
    keyed = {name for name, fn in maps.items() if wants_key(fn)}

    def every_map(blocks: tuple[Tree, ...], row: Tree) -> dict[str, Tree]:
        return {name: fn(blocks, row) for name, fn in maps.items()}

    def every_map_with_key(blocks: tuple[Tree, ...], row: Tree, *, key: Key) -> dict[str, Tree]:
        return {
            name: fn(blocks, row, key=key) if name in keyed else fn(blocks, row)
            for name, fn in maps.items()
        }

    return every_map_with_key if keyed else every_map
