"""Which splits of a client's data a problem reads: one loss on one, or two levels on two."""

import abc
from collections.abc import Callable

import equinox as eqx

from rookery.problem import validation
from rookery.problem.constraints import Constrained
from rookery.types import Loss, Tree


class AbstractOneVariable(Constrained):
    """The only variable is w."""

    @property
    def variables(self) -> tuple[str]:
        """w alone."""
        return ("w",)


class AbstractOneSplit(Constrained):
    """All that is averaged is averaged over one split."""

    split: eqx.AbstractVar[str]

    @property
    def splits(self) -> tuple[str, ...]:
        """The one split."""
        return (self.split,)


class AbstractOneLoss(AbstractOneSplit):
    """One loss, averaged over one split of a client's data."""

    loss: Loss
    split: str = eqx.field(static=True, default="train", kw_only=True)

    @property
    @abc.abstractmethod
    def variables(self) -> tuple[str, ...]:
        """Names of the variables."""

    def __check_init__(self):
        validation.check_function("loss", self.loss)

    def check(self, start: tuple[Tree, ...], example: Callable[[str], Tree]) -> None:
        """Raise unless every variable has a start and the loss returns one number there."""
        validation.check_start(self, start)
        validation.check_scalar_loss("loss", self.loss, start, example(self.split))


class AbstractTwoSplits(Constrained):
    """Two levels, each averaged over a split of its own."""

    inner_split: eqx.AbstractVar[str]
    outer_split: eqx.AbstractVar[str]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the outer and of the inner level, each once."""
        return tuple(dict.fromkeys((self.outer_split, self.inner_split)))
