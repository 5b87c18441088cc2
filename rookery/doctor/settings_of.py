"""The settings of an algorithm that its health depends on, whatever the algorithm is."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import equinox as eqx
import jax

from rookery.algorithms.shared.auto import AbstractAuto, AutoOpt, DoG, DoGMemory
from rookery.algorithms.shared.lipschitz import NeumannSettings
from rookery.algorithms.shared.schedule import AbstractSchedule
from rookery.algorithms.shared.step_rule import PerCall, is_auto
from rookery.algorithms.shared.warm import WarmSeries
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.participation import AbstractParticipation
from rookery.types import BatchSize, Tree


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
        clipped: share of the outer steps that their rule has cut; None if it cuts none.
        is_found: whether the run has found the step, and shortens it where directions turn back.
    """

    step: float | None
    step_name: str
    local_steps: int
    cohort: int
    batch_size: BatchSize
    series: NeumannSettings | None
    clipped: float | None = None
    is_found: bool = False

    @property
    def is_warm(self) -> bool:
        """Whether the series continues from round to round, so that its length is no truncation."""
        return isinstance(self.series, WarmSeries)


def settings_of(
    algorithm: AbstractAlgorithm, n_clients: int, round: int, state: Tree = ()
) -> Settings:
    """The settings of an algorithm in a round; sizes that it found come from its state.

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
    chosen = getattr(algorithm, "adjoint", None) or getattr(algorithm, "estimator", None)
    parts = [chosen, *_parts(algorithm)]
    series = next((part for part in parts if isinstance(part, NeumannSettings)), None)
    rule, found = getattr(algorithm, name, None), _found(state)
    return Settings(
        _found_size(rule, found) if is_auto(rule) else _number(rule, steps, round),
        name,
        steps,
        min(int(n), n_clients),
        getattr(algorithm, "batch_size", None),
        series,
        _clipped(found),
        is_auto(rule),
    )


def _found(state: Tree) -> list[AutoOpt]:
    """The states of all rules that find their sizes."""
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, AutoOpt))
    return [leaf for leaf in leaves if isinstance(leaf, AutoOpt)]


def _found_size(rule: object, found: list[AutoOpt]) -> float | None:
    """The largest size that a rule has found; None before its first step."""
    rule = rule[0] if isinstance(rule, tuple) else rule
    assert isinstance(rule, AbstractAuto)
    is_outer = isinstance(rule, DoG)
    own = [opt for opt in found if isinstance(opt.memory, DoGMemory) == is_outer]
    return max((float(rule.size(opt)) for opt in own), default=0.0) or None


def _clipped(found: list[AutoOpt]) -> float | None:
    """The share of steps that were cut, of all rules that cut."""
    memories = [opt.memory for opt in found if isinstance(opt.memory, DoGMemory)]
    steps = sum(int(memory.steps) for memory in memories)
    return sum(int(memory.clipped) for memory in memories) / steps if steps else None


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
