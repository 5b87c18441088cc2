"""Guards: a run that begins to break down goes back to its last good state with smaller steps.

A guard only watches: as long as nothing breaks down, every number of the run is as without it. It
looks after a fixed number of rounds, so what it does depends on neither speed nor engine.

A roll-back restores the state and keeps the round of the run: the rounds that were lost have been
paid for, and stay in the ledger. The algorithm continues with the round of its state, so that what
it does in its first round, or in every tenth, fits the state.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import cast

import jax
import numpy as np

from rookery import check, tree
from rookery.runner.best import GOALS, Goal
from rookery.runner.documents import Json
from rookery.types import Tree

GROWING = 1.2
"""A step this many times as long as the one before is growing: a series that contracts has none."""
MATTERS = 0.1
"""A step shorter than this share of the variable's norm does no harm; one that goes on growing by
the factor above comes to a sixth of it."""
LOST = 0.8
"""A metric has collapsed if it has lost this share of its progress ..."""
PROGRESS = 1 / 3
"""... which counts if it is at least this share of the metric's size: less may be noise."""
HEADWAY = 0.1
"""A state is worth going back to if the metric has improved by this share of its size."""


@dataclass(frozen=True)
class Guard:
    """Watches a run, and takes it back to its last good state when it begins to break down.

    A run breaks down if

    - a round leaves a value that is not finite, or an entry exceeds ``growth_limit``;
    - the way that a variable goes between two checks has grown at two checks in a row, to more
      than ``growth`` times the longest before, and beyond a tenth of the variable's norm;
    - a measured loss is more than ``growth`` times as large as ever before;
    - for ``patience`` evaluations in a row, and at the last one at once, the metric has lost 80 %
      of its progress, or is worse than at the start by more than its size; with ``drop``, also if
      it is worse than its best by more than that.

    It then returns to the state with the best value of the metric, or to the start if that is no
    headway; without a metric, to the last state whose step was not growing. All step sizes are
    multiplied by ``factor``. The count of rounds continues, and the ledger keeps the costs.

    >>> import rookery as rk
    >>> zoo = rk.zoo.quadratic_losses(n_clients=2, size=2, rows=3)
    >>> on = zoo.problem, rk.Population.stacked(zoo.data), zoo.start
    >>> result = rk.run(rk.FedAvg(lr=0.3), *on, rounds=20, guard=rk.stop.Guard(times=3))
    >>> result.rollbacks, result.step_factor  # nothing to do
    ((), 1.0)

    Args:
        factor: on all step sizes at each roll-back; below 1. A run that comes back to the same
            state again has made no headway, and its steps shrink by the factor squared. The third
            time it starts over, with the steps of its last start times the factor.
        times: how many roll-backs a run has. If it breaks down once more, it returns to its last
            good state and stops.
        growth: how many times a step or a loss may grow.
        drop: how much worse than its best the metric may be, in its own units; None sets no limit.
            Noise alone may exceed a small one: a guard with ``drop`` may change a sound run.
        patience: for how many evaluations in a row a metric may be too bad.
        metric: ``METRIC:max`` or ``METRIC:min``; ``METRIC`` alone if the evaluation knows which.
            None takes the first score or accuracy that the run measures, or else the first loss.
        every: rounds between checks of the variables; the run's ``evaluate_every`` if None.
    """

    factor: float = 0.5
    times: int = 10
    growth: float = 100.0
    drop: float | None = None
    patience: int = 2
    metric: str | None = None
    every: int | None = None

    def __post_init__(self):
        check.fraction("factor of Guard", self.factor)
        if self.factor == 1:
            raise ValueError("factor of Guard must be below 1, got 1: steps would not shrink.")
        check.count("times of Guard", self.times)
        check.positive("growth of Guard", self.growth)
        if self.growth <= 2:
            raise ValueError(f"growth of Guard must be above 2, got {self.growth}.")
        if self.drop is not None:
            check.positive("drop of Guard", self.drop)
        check.count("patience of Guard", self.patience)
        if self.metric is not None and not isinstance(self.metric, str):
            raise TypeError(f"metric of Guard must be a text, got {self.metric!r}.")
        if self.every is not None:
            check.count("every of Guard", self.every)

    def resolved(self, goals: Mapping[str, Goal | None] | None) -> "Guard":
        """The guard with the goal of its metric filled in, or an error.

        Args:
            goals: for every number that the run measures, which way is better, None if unknown;
                None if they were not looked up.
        """
        if goals is None:
            return self
        if self.metric is None:
            if self.drop is not None and _first_known(goals) is None:
                raise ValueError(
                    "Guard(drop=...) needs a metric: none that the run measures says whether more "
                    'of it is better. Write metric="NAME:max", or min.'
                )
            return self
        name, goal = _split(self.metric)
        check.one_of("metric of Guard", name, goals)
        goal = goal or _known(name, goals[name])
        if goal is None:
            raise ValueError(
                f'Guard: is more of {name!r} better, or less? Write metric="{name}:max", or min.'
            )
        return replace(self, metric=f"{name}:{goal}")

    def deciding_metric(
        self, known: Mapping[str, Goal], row: Mapping[str, object]
    ) -> tuple[str, Goal] | None:
        """The metric that decides and its goal; None if a row has no such number.

        Args:
            known: goals that the run's evaluations know.
            row: what was measured.
        """
        if self.metric is not None:
            name, goal = _split(self.metric)
            goal = goal or _known(name, known.get(name))
            return None if goal is None or name not in row else (name, goal)
        return _first_known({name: known.get(name) for name in row})

    def losses(self, known: Mapping[str, Goal], row: Mapping[str, float]) -> dict[str, float]:
        """All numbers of a row of which less is better."""
        chosen = None if self.metric is None else self.deciding_metric(known, row)
        goals = {} if chosen is None else dict([chosen])
        return {
            name: value
            for name, value in row.items()
            if (goals.get(name) or _known(name, known.get(name))) == "min"
        }


GUARD = Guard()
"""The guard of a run that names none."""


@dataclass(frozen=True)
class RollBack:
    """One return to a good state.

    Attributes:
        round: rounds done when the breakdown was noticed.
        to: the round of the state that the run went back to.
        reason: what was noticed.
        factor: on the step sizes from then on.
        lost: how many rounds the run is ahead of its state from then on.

    >>> RollBack(round=30, to=20, reason="x has grown", factor=0.5, lost=10).factor
    0.5
    """

    round: int
    to: int
    reason: str
    factor: float
    lost: int


@dataclass(frozen=True)
class Good:
    """A state to go back to, the round it is from, and how many rounds led to it."""

    round: int
    state: Tree
    age: int = 0


@dataclass
class GuardState:
    """What a guard has seen of one run; part of its checkpoints.

    Attributes:
        good: the state to go back to.
        before: the variables at the last check, and their round.
        rollbacks: all returns so far.
        first: the metric at the start; like ``best`` turned such that more is better.
        best: the best so far.
        largest: per loss, its largest size so far.
        bad: how many evaluations in a row were too bad.
        steps: per variable, how far it went up to the last check.
        longest: per variable, the longest step before the last one began to grow.
        bases: the same while it grows; None if it does not.
        top: the best state of an earlier attempt, if the run has started over since.
        top_score: the metric there.
        ended: why the run was given up, if it was.
    """

    good: Good
    before: Good
    rollbacks: list[RollBack] = field(default_factory=list)
    first: float | None = None
    best: float | None = None
    largest: dict[str, float] = field(default_factory=dict)
    bad: int = 0
    steps: list[float | None] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    bases: list[float | None] = field(default_factory=list)
    top: Good | None = None
    top_score: float | None = None
    ended: str = ""

    @property
    def factor(self) -> float:
        """The factor on all step sizes."""
        return self.rollbacks[-1].factor if self.rollbacks else 1.0

    @property
    def lost(self) -> int:
        """How many rounds the run is ahead of its state."""
        return self.rollbacks[-1].lost if self.rollbacks else 0

    def as_note(self) -> dict[str, object]:
        """All but the arrays, ready for JSON."""
        note = {name: getattr(self, name) for name in _NOTED}
        rollbacks = [asdict(one) for one in self.rollbacks]
        return note | {
            "rollbacks": rollbacks,
            "good": [self.good.round, self.good.age],
            "top": None if self.top is None else [self.top.round, self.top.age],
            "before": self.before.round,
        }

    @classmethod
    def of_note(cls, note: Mapping[str, Json], good: Tree, before: Tree, top: Tree) -> "GuardState":
        """The state that a note was made of, with its arrays."""
        place = note["top"]
        return cls(
            Good(note["good"][0], good, note["good"][1]),
            Good(note["before"], before),
            [RollBack(**one) for one in note["rollbacks"]],
            top=None if place is None else Good(place[0], top, place[1]),
            **{name: note[name] for name in _NOTED},
        )

    def check_variables(
        self,
        guard: Guard,
        round: int,
        state: Tree,
        solution: tuple[Tree, ...],
        names: Sequence[str],
    ) -> str:
        """Look at the variables after some rounds; returns what is wrong with them, if anything."""
        before = cast(tuple[Tree, ...], self.before.state)
        old, lengths = self.steps, [_distance(a, b) for a, b in zip(solution, before, strict=True)]
        reasons = []
        for i, (name, length) in enumerate(zip(names, lengths, strict=True)):
            last = old[i] if old else None
            if not last or length < GROWING * last:
                self._set_base(i, None)
                self._longest(i, length)
                continue
            base = self._base(i)
            if base is None:  # one longer step alone is none: a variable may set out late
                self._set_base(i, self._longest(i, last))
                continue
            if length > guard.growth * base and length > MATTERS * _norm(before[i]):
                reasons.append(
                    f"the step of {name} has grown to {length:.3g}, more than {guard.growth:g} "
                    f"times {base:.3g}"
                )
        if reasons:
            return reasons[0]
        is_growing = any(base is not None for base in self.bases)
        if self.first is None and old and not is_growing:
            self.good = self._now(round, state)
        self.steps, self.before = [*lengths], Good(round, solution)
        return ""

    def check_metric(
        self,
        guard: Guard,
        metric: tuple[str, Goal],
        value: float,
        round: int,
        state: Tree,
        is_last: bool,
    ) -> str:
        """Look at an evaluation; returns what is wrong with it, if anything."""
        name, goal = metric
        score = value if goal == "max" else -value
        if self.first is None or self.best is None:
            if math.isfinite(value):
                self.first = self.best = score
                self.good = self._now(round, state)
            return ""
        if not math.isfinite(value):
            return f"{name} is no longer finite"
        best = self.best if goal == "max" else -self.best
        wrong = self._too_bad(guard, score)
        if wrong:
            self.bad += 1
            if self.bad < guard.patience and not is_last:
                return ""
            return f"{name} is {value:.4g} after a best of {best:.4g}: {wrong}"
        self.bad = 0
        if score > self.best:
            self.best = score
            if self._is_headway(guard):
                self.good = self._now(round, state)
        if is_last and self.top is not None and self.top_score is not None:
            allowed = LOST * (self.top_score - self.first) if guard.drop is None else guard.drop
            if self.top_score - score > allowed:
                self.good = self.top
                return f"{name} is {value:.4g}, and was better before the run started over"
        return ""

    def start_over_if_stuck(self, start: Callable[[], Tree]) -> None:
        """Distrust a good state that has led to a breakdown twice: the start is the next one."""
        last = [one.to for one in self.rollbacks[-2:]]
        if self.good.age == 0 or last != [self.good.round] * 2:
            return
        if self.best is not None and (self.top_score is None or self.best > self.top_score):
            self.top, self.top_score = self.good, self.best
        self.good, self.best = Good(0, start()), self.first

    def check_losses(self, guard: Guard, losses: Mapping[str, float]) -> str:
        """Look for a loss that has jumped; returns what is wrong, if anything."""
        for name, value in losses.items():
            before = self.largest.get(name, 0.0)
            if value > guard.growth * before > 0:
                return (
                    f"{name} is {value:.4g}, more than {guard.growth:g} times as large as ever "
                    f"before ({before:.4g})"
                )
        for name, value in losses.items():
            if math.isfinite(value):
                self.largest[name] = max(self.largest.get(name, 0.0), abs(value))
        return ""

    def roll_back(
        self, guard: Guard, round: int, reason: str, solution: tuple[Tree, ...]
    ) -> RollBack:
        """Note a return to the good state, whose variables are ``solution``."""
        is_again = bool(self.rollbacks) and self.rollbacks[-1].to == self.good.round
        before = self.factor
        if self.good.age == 0:  # what failed later may be the fault of the state, not of the steps
            starts = [one.factor for one in self.rollbacks if one.to == self.good.round]
            before = starts[-1] if starts else 1.0
        factor = before * (guard.factor**2 if is_again else guard.factor)
        lost = round - self.good.age
        one = RollBack(round, self.good.round, reason, factor, lost)
        self.rollbacks.append(one)
        self.forget(round, solution)
        return one

    def forget(self, round: int, solution: tuple[Tree, ...]) -> None:
        """Start again to watch, from the good state."""
        self.steps, self.bases, self.longest, self.bad = [], [], [], 0
        self.before = Good(round, solution)

    def _now(self, round: int, state: Tree) -> Good:
        return Good(round, state, round - self.lost)

    def _is_headway(self, guard: Guard) -> bool:
        """Whether the best is worth going back to: a lucky guess of a broken model is not."""
        assert self.first is not None and self.best is not None
        enough = HEADWAY * max(abs(self.first), abs(self.best))
        return self.best - self.first > min(enough, guard.drop or math.inf)

    def _too_bad(self, guard: Guard, score: float) -> str:
        assert self.first is not None and self.best is not None
        progress, size = self.best - self.first, max(abs(self.first), abs(self.best))
        if guard.drop is not None and self.best - score > guard.drop:
            return f"worse by more than drop={guard.drop:g}"
        if progress >= PROGRESS * size > 0 and self.best - score >= LOST * progress:
            return f"it has lost {(self.best - score) / progress:.0%} of its progress"
        if self.first - score > size > 0:
            return "it is far worse than at the start"
        return ""

    def _longest(self, i: int, length: float) -> float:
        """The longest step of a variable so far, this one included."""
        n = len(cast(tuple[Tree, ...], self.before.state))
        self.longest = self.longest or [0.0] * n
        self.longest[i] = max(self.longest[i], length)
        return self.longest[i]

    def _base(self, i: int) -> float | None:
        return self.bases[i] if self.bases else None

    def _set_base(self, i: int, base: float | None) -> None:
        self.bases = self.bases or [None] * len(cast(tuple[Tree, ...], self.before.state))
        self.bases[i] = base


_BY_NAME: dict[str, Goal] = {"accuracy": "max", "loss": "min"}
_NOTED = ("first", "best", "largest", "bad", "steps", "longest", "bases", "top_score", "ended")


def _split(text: str) -> tuple[str, Goal | None]:
    for goal in GOALS:
        if text.endswith(f":{goal}"):
            return text.removesuffix(f":{goal}"), goal
    return text, None


def _known(name: str, goal: Goal | None) -> Goal | None:
    """Which way a number is better: as its evaluation knows, or by a name that leaves no doubt."""
    return goal or _BY_NAME.get(name.split("/")[-1])


def _first_known(goals: Mapping[str, Goal | None]) -> tuple[str, Goal] | None:
    """The first number of which more is better, or else the first of which less is."""
    known = [(name, _known(name, goal)) for name, goal in goals.items()]
    for wanted in GOALS:
        for name, goal in known:
            if goal == wanted:
                return name, wanted
    return None


def _norm(variable: Tree) -> float:
    return _length(block.astype(np.float64) for block in _blocks(variable))


def _distance(a: Tree, b: Tree) -> float:
    pairs = zip(_blocks(a), _blocks(b), strict=True)
    return _length(one.astype(np.float64) - other.astype(np.float64) for one, other in pairs)


def _blocks(variable: Tree) -> Iterator[np.ndarray]:
    """All entries, block by block: a large model is not copied."""
    for leaf in jax.tree.leaves(variable):
        yield from tree.blocks(leaf)


def _length(blocks: Iterable[np.ndarray]) -> float:
    return math.sqrt(sum(float(np.sum(np.square(block))) for block in blocks))
