"""SCAFFOLD-S: SCAFFOLD on minimax problems.

C. Hou, K. K. Thekumparampil, G. Fanti, S. Oh. Efficient algorithms for federated saddle point
optimization. arXiv:2102.06333.

    paper   code                    meaning
    x, y    blocks                  minimising and maximising variable
    η       outer_lr, inner_lr      local step sizes of x and of y

It is SCAFFOLD (``scaffold.py`` has the round) on the saddle field (f_x, -f_y), x and y together, at
the same cost. Written from that idea and not from the authors' pseudo-code.
"""

from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx

from rookery.algorithms.scaffold import AbstractScaffold
from rookery.algorithms.shared.field import Blocks, saddle_field
from rookery.algorithms.shared.step_rule import Size, step_rule
from rookery.problem.minimax import Minimax
from rookery.types import Sample


class ScaffoldS(AbstractScaffold):
    """SCAFFOLD on a minimax problem: x and y together, with the field (f_x, -f_y).

    >>> import rookery as rk
    >>> rk.ScaffoldS(outer_lr=0.05, inner_lr=0.1, local_steps=5).rates()
    (0.05, 0.1)

    Args:
        outer_lr: of every local step of x, or of the whole round (:class:`PerCall`).
        inner_lr: of y, likewise.
    """

    kind: ClassVar[type] = Minimax

    _: KW_ONLY
    outer_lr: Size = eqx.field(converter=step_rule)
    inner_lr: Size = eqx.field(converter=step_rule)

    def rates(self) -> tuple[Size, ...]:
        """One step size for x and one for y."""
        return self.outer_lr, self.inner_lr

    def field(self, problem: Minimax, blocks: Blocks, sample: Sample) -> Blocks:
        """(f_x, -f_y)."""
        return saddle_field(problem, blocks, sample)
