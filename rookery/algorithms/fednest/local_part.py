"""What FedNest's parts with local steps have in common: their rule, and how many there are."""

from dataclasses import KW_ONLY

import equinox as eqx

from rookery.algorithms.shared import local
from rookery.algorithms.shared.auto import DoG
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_step_rule,
    is_keeping,
    kept_opt,
    step_rule,
)
from rookery.algorithms.shared.two_level import AbstractPart
from rookery.types import Tree


class AbstractLocalPart(AbstractPart):
    """A part whose clients take local steps.

    Args:
        lr: the rule of every local step, or a size for the whole call (:class:`PerCall`).
        local_steps: τ, one number or one per client.
    """

    _: KW_ONLY
    lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)

    def __check_init__(self):
        check_step_rule(f"{type(self).__name__}.lr", self.lr, "local", may_be_auto=True)
        self.check_steps()

    def first_opt(self, start: Tree, /) -> Tree:
        """What the clients keep of their optimisers' states, if anything."""
        return kept_opt(self.lr, start)

    @property
    def is_keeping(self) -> bool:
        """Whether that is anything."""
        return is_keeping(self.lr)

    def check_steps(self, n_clients: int | None = None) -> None:
        """Raise unless the numbers of local steps are counts and fit the clients."""
        name = f"{type(self).__name__}.local_steps"
        local.check_local_steps(name, self.local_steps, n_clients)
