"""The settings of an algorithm that its health depends on, whatever the algorithm is."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import equinox as eqx

from rookery.algorithms.shared.lipschitz import NeumannSettings
from rookery.algorithms.shared.schedule import AbstractSchedule
from rookery.algorithms.shared.step_rule import PerCall
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.participation import AbstractParticipation
from rookery.types import BatchSize


@dataclass(frozen=True)
class Settings:
    """What the doctor compares with measurements; None where an algorithm has no such number.

    Attributes:
        step: of the inner variable, or of the only one.
        step_name: what the algorithm calls it.
        local_steps: that a client takes in one call.
        cohort: clients of one exchange.
        batch_size: rows of one evaluation.
        series: of the adjoint.
    """

    step: float | None
    step_name: str
    local_steps: int
    cohort: int
    batch_size: BatchSize
    series: NeumannSettings | None


def settings_of(algorithm: AbstractAlgorithm, n_clients: int, round: int) -> Settings:
    """The settings of an algorithm in a round.

    >>> import rookery as rk
    >>> own = settings_of(rk.FedNest(outer_lr=0.1, inner_lr=0.2, inner_steps=3), 5, 0)
    >>> own.step, own.step_name, own.local_steps, own.cohort
    (0.2, 'inner_lr', 3, 5)
    """
    name = "inner_lr" if hasattr(algorithm, "inner_lr") else "lr"
    steps = getattr(algorithm, "inner_steps", getattr(algorithm, "local_steps", 1))
    steps = steps if isinstance(steps, int) else 1
    who = getattr(algorithm, "clients", None)
    n = getattr(who, "n", n_clients) if isinstance(who, AbstractParticipation) else n_clients
    series = next((part for part in _parts(algorithm) if isinstance(part, NeumannSettings)), None)
    return Settings(
        _number(getattr(algorithm, name, None), steps, round),
        name,
        steps,
        min(int(n), n_clients),
        getattr(algorithm, "batch_size", None),
        series,
    )


def _number(rule: object, steps: int, round: int) -> float | None:
    """The size of one step, if a rule has one: an optimiser has none."""
    if isinstance(rule, tuple):
        rule = rule[0]
    if isinstance(rule, PerCall):
        return float(rule.lr) / steps
    if isinstance(rule, AbstractSchedule):
        return float(rule(round))
    return float(rule) if isinstance(rule, float) else None


def _parts(module: eqx.Module) -> Iterator[eqx.Module]:
    yield module
    for field in fields(module):
        value = getattr(module, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, eqx.Module):
                yield from _parts(each)
