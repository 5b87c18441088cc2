"""Search settings: every point of a grid, or ranges by successive halving.

A range is searched without a grid made by hand. Many settings run for a ninth of the rounds, one in
three of them continues for a third, and one in three of those to the end. The few that are left are
confirmed with further seeds. A choice at the end of its range can widen the range.

K. Jamieson, A. Talwalkar. Non-stochastic best arm identification and hyperparameter optimization.
AISTATS 2016.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, TypeGuard

from rookery import check

TRIALS = 27
"""Settings that are begun if a range is searched."""
KEEP = 3
"""One in this many settings continues to the next rung, for this many times the rounds."""
RUNGS = 3
FINALISTS = 3
"""Settings that are confirmed with further seeds."""
DECADE = 10.0
"""How much a range is widened by; a grid continues with the ratio of its last two values."""
SAMPLERS = ("halton", "optuna")

Setting = dict[str, Any]  # keywords of an algorithm, each of its own type
"""The values at one point, by name."""

Values = Sequence[object] | Mapping[str, float]
"""Values to try, or a range, as ``{"low": 0.001, "high": 10.0}``."""

Space = Mapping[str, Values]
"""The values or the range of every setting, by name."""

Measure = Callable[[Mapping[int, Setting], Sequence[int], float], list[list[float | None]]]
"""For numbered settings, seeds and a share of the rounds, the metric of each setting and seed."""


@dataclass(frozen=True)
class Trial:
    """One setting that was tried.

    Attributes:
        setting: the values tried, by name.
        values: the last value of the metric for each seed; None where the run diverged.
        share: of the rounds that were run.
        early: the mean after the first rung, which all settings of a search have in common; None if
            a run had diverged, or if there was one rung alone.
        unseen: the last value, for each seed, of a metric that no choice depends on; empty if none
            is recorded.
    """

    setting: Setting
    values: list[float | None]
    share: float = 1.0
    early: float | None = None
    unseen: list[float | None] = field(default_factory=list)

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if a run diverged."""
        return _mean(self.values)

    @property
    def mean_unseen(self) -> float | None:
        """The mean of the metric that no choice depends on; None without it."""
        return _mean(self.unseen)


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return fmean(finite) if values and len(finite) == len(values) else None


@dataclass(frozen=True)
class SearchPlan:
    """What a search may spend; the same for every algorithm that is compared.

    >>> SearchPlan(seeds=(0,), confirm=(1, 2)).runs({"lr": {"low": 0.1, "high": 10.0}})
    33

    Attributes:
        seeds: of the search; a setting counts by its mean over them.
        confirm: further seeds, of the best few settings alone.
        trials: how many settings of a range are begun; None means 27. A grid is run whole.
        extend: how often a choice at the end of its range or grid widens it; a grid of lists is
            never widened.
        sampler: which settings of a range are tried: ``halton`` spreads them evenly, ``optuna``
            proposes them from the results so far.
    """

    seeds: Sequence[int] = (0,)
    confirm: Sequence[int] = ()
    trials: int | None = None
    extend: int = 0
    sampler: str = "halton"

    def __post_init__(self):
        if not self.seeds:
            raise ValueError("seeds is empty; name at least one, as in seeds=(0, 1, 2).")
        for seed in (*self.seeds, *self.confirm):
            check.count("seeds", seed, least=0)
        if both := sorted(set(self.seeds) & set(self.confirm)):
            raise ValueError(f"confirm needs other seeds than the search, got {both} in both.")
        if self.trials is not None:
            check.count("trials", self.trials)
        check.count("extend", self.extend, least=0)
        check.one_of("sampler", self.sampler, SAMPLERS)

    def check(self, space: Space) -> None:
        """Raise unless the space can be searched by this plan."""
        for name, values in space.items():
            if isinstance(values, Mapping):
                _check_range(name, values)
            elif isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
                raise ValueError(f"grid: {name} must be a list of values, got {values!r}.")
        if not has_range(space):
            for name, default in (("trials", None), ("sampler", "halton")):
                if getattr(self, name) != default:
                    raise ValueError(
                        f"{name} is for ranges, and all settings are lists, whose combinations "
                        "are all run. Write a range as { low = 0.001, high = 10.0 }, or leave "
                        f"{name} out."
                    )

    def runs(self, space: Space) -> int:
        """How many runs are begun if nothing is widened."""
        begun = (self.trials or TRIALS) if has_range(space) else len(grid_points(space))
        return begun * len(self.seeds) + min(begun, FINALISTS) * len(self.confirm)


def has_range(space: Space) -> bool:
    """Whether some setting has a range instead of a list of values."""
    return any(isinstance(values, Mapping) for values in space.values())


def grid_points(grid: Space) -> list[Setting]:
    """All combinations of the values of a grid, which has no range.

    >>> grid_points({"a": [1, 2], "b": [3]})
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    lists = [values for values in grid.values() if not isinstance(values, Mapping)]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*lists)]


def spread(space: Space, n: int) -> list[Setting]:
    """Settings that fill a space evenly, the same in every run; ranges by their logarithm.

    >>> spread({"lr": {"low": 0.01, "high": 1.0}, "steps": [1, 5]}, 2)
    [{'lr': 0.1, 'steps': 1}, {'lr': 0.032, 'steps': 5}]
    """
    from scipy.stats import qmc  # slow to import, and only a search of ranges needs it

    points = qmc.Halton(len(space), scramble=False).fast_forward(1).random(n)
    return [
        {name: _value(space[name], u) for name, u in zip(space, point, strict=True)}
        for point in points.tolist()
    ]


def _value(values: Values, u: float) -> object:
    if not isinstance(values, Mapping):
        return values[int(u * len(values))]
    exact = values["low"] * (values["high"] / values["low"]) ** u
    return float(f"{exact:.2g}")  # no result depends on the third digit of a step


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        trials: every setting that was tried.
        space: the space as it was in the end.
        widened: the settings whose range or grid was widened, once for each time.
    """

    trials: list[Trial]
    space: Space
    widened: list[str]


def search(space: Space, goal: str, measure: Measure, plan: SearchPlan) -> Found:
    """Try settings of a space.

    Args:
        space: the settings to search.
        goal: ``max`` or ``min``.
        measure: runs settings. One that has run for a smaller share continues.
        plan: what may be spent.
    """
    plan.check(space)
    trials, widened = list[Trial](), list[str]()
    new, n = space, plan.trials or TRIALS
    while True:
        trials += _tried(new, n, goal, measure, plan, len(trials))
        best = chosen(trials, goal)
        ends = [] if best is None else at_ends(space, best.setting)
        strips = {name: strip for name, side in ends if (strip := _beyond(space[name], side))}
        if not strips or len(widened) == plan.extend:
            return Found(trials, space, widened)
        name, strip = next(iter(strips.items()))
        new, space = {**space, name: strip}, {**space, name: _joined(space[name], strip)}
        n = max(n // 2, FINALISTS)
        widened.append(name)


def _tried(
    space: Space, n: int, goal: str, measure: Measure, plan: SearchPlan, first: int
) -> list[Trial]:
    """The trials of new settings, numbered from ``first``, after all rungs and with all seeds."""
    trials: dict[int, Trial] = {}

    def run(settings: Mapping[int, Setting], seeds: Sequence[int], share: float) -> None:
        found = measure(settings, seeds, share)
        for (number, setting), values in zip(settings.items(), found, strict=True):
            before = trials.get(number)
            if before is not None and before.share == share:  # with further seeds
                values = [*before.values, *values]
            early = before.early if before is not None else None
            trials[number] = Trial(setting, values, share, early)

    def best(share: float, n: int) -> dict[int, Setting]:
        there = [(k, one) for k, one in trials.items() if one.share == share]
        finite = [(one.mean, k) for k, one in there if one.mean is not None]
        ranked = sorted(finite, reverse=goal == "max")
        return {k: trials[k].setting for _, k in ranked[:n]}

    if not has_range(space):
        run(dict(enumerate(grid_points(space), first)), plan.seeds, 1.0)
    else:
        shares = [KEEP ** -float(rung) for rung in reversed(range(RUNGS))]
        for settings in _proposals(space, n, goal, plan, first, trials):
            run(settings, plan.seeds, shares[0])
        trials.update({k: replace(one, early=one.mean) for k, one in trials.items()})
        for share, before in zip(shares[1:], shares, strict=False):
            n = math.ceil(n / KEEP)
            run(best(before, n), plan.seeds, share)
    if plan.confirm:
        run(best(1.0, FINALISTS), plan.confirm, 1.0)
    return [trials[number] for number in sorted(trials)]


def _proposals(
    space: Space, n: int, goal: str, plan: SearchPlan, first: int, trials: Mapping[int, Trial]
) -> Iterator[dict[int, Setting]]:
    """Settings for the first rung: at once, or some at a time with a look at the results."""
    if plan.sampler == "halton":
        yield dict(enumerate(spread(space, n), first))
        return
    try:
        import optuna  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the sampler optuna needs the package optuna: pip install -e '.[tune]' in rookery's "
            "checkout, or use the sampler halton."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    at_once = math.ceil(n / KEEP)
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=at_once, constant_liar=True)
    study = optuna.create_study(
        direction="maximize" if goal == "max" else "minimize", sampler=sampler
    )
    for begin in range(0, n, at_once):
        asked = {first + i: study.ask() for i in range(begin, min(begin + at_once, n))}
        yield {
            number: {name: _suggested(one, name, values) for name, values in space.items()}
            for number, one in asked.items()
        }
        for number, one in asked.items():
            mean = trials[number].mean
            failed = optuna.trial.TrialState.FAIL
            study.tell(one, mean, state=failed if mean is None else None)


def _suggested(trial: Any, name: str, values: Values) -> object:  # trial: of Optuna
    if isinstance(values, Mapping):
        return float(f"{trial.suggest_float(name, values['low'], values['high'], log=True):.2g}")
    return values[trial.suggest_int(name, 0, len(values) - 1)]


def chosen(trials: Sequence[Trial], goal: str) -> Trial | None:
    """The best of the trials that ran to the end with the most seeds; None if all diverged."""
    good = [(one.mean, one) for one in finalists(trials) if one.mean is not None]
    return (max if goal == "max" else min)(good, key=lambda pair: pair[0])[1] if good else None


def finalists(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that ran to the end with the most seeds: a choice is one of them."""
    most = max((len(one.values) for one in trials if one.share == 1), default=0)
    return [one for one in trials if one.share == 1 and len(one.values) == most]


def at_ends(space: Space, setting: Setting) -> list[tuple[str, str]]:
    """The settings chosen at the end of their range or grid, with the side: low or high.

    The outer tenth of a range is its end. In a grid of lists of one length, each place has ends of
    its own, and a list is at an end if one of its numbers is.

    >>> at_ends({"lr": [0.1, 1.0, 10.0], "steps": [1, 5]}, {"lr": 10.0, "steps": 1})
    [('lr', 'high'), ('steps', 'low')]
    >>> at_ends({"lr": [[0.1, 0.5], [0.2, 0.5], [0.3, 0.5]]}, {"lr": [0.3, 0.5]})
    [('lr', 'high')]
    """
    found = []
    for name, values in space.items():
        value = setting[name]
        if isinstance(values, Mapping):
            low, high = values["low"], values["high"]
            place = math.log(value / low) / math.log(high / low)
            is_low, is_high = place < 0.1, place > 0.9
        else:
            own = value if is_list(value) else [value]
            tried = [(v, n) for v, n in zip(own, _places(values), strict=False) if len(set(n)) > 1]
            is_low = any(v == min(numbers) for v, numbers in tried)
            is_high = any(v == max(numbers) for v, numbers in tried)
        found += [(name, side) for side, is_it in (("low", is_low), ("high", is_high)) if is_it]
    return found


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a value of a setting is itself a list, as the steps of two levels."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _places(values: Sequence[object]) -> list[tuple[int | float, ...]]:
    """The numbers at each place of lists of one length; none if some value is no such list.

    >>> _places([1, 2]), _places([[1, 2], [3, 4]]), _places([1, [2]]), _places(["a", "b"])
    ([(1, 2)], [(1, 3), (2, 4)], [], [])
    """
    lists = [list(v) if is_list(v) else [v] for v in values]
    has_one_shape = len({len(v) if is_list(v) else None for v in values}) == 1
    has_numbers = all(len(_numbers(row)) == len(row) for row in lists)
    if not (has_one_shape and has_numbers):
        return []
    return list(zip(*(_numbers(row) for row in lists), strict=True))


def _beyond(values: Values, side: str) -> Values | None:
    """What comes after the end of a range or of a grid; None if nothing does, or for lists."""
    if isinstance(values, Mapping):
        low, high = values["low"], values["high"]
        low, high = (low / DECADE, low) if side == "low" else (high, high * DECADE)
        return {"low": low, "high": high}
    if is_list(values[0]):
        return None
    end, beside = sorted(_numbers(values), reverse=side == "high")[:2]
    value = end * end / beside if beside else end
    if isinstance(end, int):
        value = round(value)
    return None if value in (0, end) else [float(f"{value:.6g}") if value % 1 else value]


def _joined(values: Values, strip: Values) -> Values:
    if isinstance(values, Mapping) and isinstance(strip, Mapping):
        return {k: pick(values[k], strip[k]) for k, pick in (("low", min), ("high", max))}
    return [*values, *strip]


def _numbers(values: Sequence[object]) -> list[int | float]:
    return [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


def _check_range(name: str, values: Mapping[str, float]) -> None:
    if set(values) != {"low", "high"}:
        raise ValueError(
            f"grid: the range of {name} needs low and high, as {{ low = 0.001, high = 10.0 }}; got "
            f"{dict(values)!r}."
        )
    for side in ("low", "high"):
        check.positive(f"grid: {name}.{side}", values[side])
    if values["low"] >= values["high"]:
        raise ValueError(
            f"grid: {name} must have low below high, got {values['low']} and {values['high']}."
        )
