"""What private programs have in common: an algorithm, and how much it may tell."""

from dataclasses import KW_ONLY
from typing import Any

import equinox as eqx

from rookery import check
from rookery.program.algorithm import AbstractAlgorithm, check_splits
from rookery.types import AnyProblem


class AbstractPrivate(AbstractAlgorithm):
    """An algorithm of which something is clipped and noised; a subclass says what.

    Args:
        algorithm: the server program.
        delta: of (epsilon, delta)-privacy. The history gets a column ``epsilon``, which needs the
            package dp-accounting. None accounts nothing.
        epsilon: the run stops before the round that would exceed it; None sets no limit.
    """

    clip: eqx.AbstractVar[Any]  # a number or a rule, None if nothing is clipped
    noise: eqx.AbstractVar[Any]  # likewise

    algorithm: AbstractAlgorithm
    _: KW_ONLY
    delta: float | None = eqx.field(static=True, default=1e-5)
    epsilon: float | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        kind = type(self).__name__
        if not isinstance(self.algorithm, AbstractAlgorithm):
            raise TypeError(
                f"{kind} takes an algorithm first, as {kind}(rk.FedAvg(...), clip=1, noise=1); "
                f"got {self.algorithm!r}."
            )
        if isinstance(self.algorithm, AbstractPrivate):
            raise TypeError(
                f"{kind} takes a plain algorithm, got a private one, {self.algorithm.name}."
            )
        if self.clip is None and self.noise is not None:
            raise ValueError(
                "noise is relative to what is clipped: noise with clip=inf would be infinite. Give "
                "a bound, or noise=0."
            )
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta must be between 0 and 1, got {self.delta}.")
        if self.epsilon is not None:
            check.positive("epsilon", self.epsilon)
            if self.noise is None or self.delta is None:
                raise ValueError(
                    f"epsilon={self.epsilon} needs noise above 0 and a delta: without them no "
                    "epsilon is finite."
                )

    @property
    def name(self) -> str:
        """The name of the algorithm after the kind of privacy."""
        return self.label or f"{type(self).__name__}{self.algorithm.name}"

    @property
    def projects(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the algorithm does."""
        return self.algorithm.projects

    def check_fit(self, problem: AnyProblem, n_clients: int) -> None:  # as the algorithm narrows it
        """Raise unless the algorithm fits the problem and the clients."""
        self.algorithm.check(problem, n_clients)
        check_splits(self.algorithm, problem)

    def check_start(self, problem, start, example) -> None:
        """As the algorithm does."""
        self.algorithm.check_start(problem, start, example)

    def remedy(self) -> str:
        """What the algorithm advises."""
        return f"{self.algorithm.remedy()} So is less noise, or a smaller clip."
