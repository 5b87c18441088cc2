"""Runs side by side: means over seeds, the cost of reaching a target, paired tests."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict

import numpy as np

from rookery.report import palette
from rookery.report.statistics import Interval, interval, student_cdf
from rookery.runner.best import Goal, goal_by_name
from rookery.runner.history import COSTS, EPSILON, ClientHistory, History


class Axis(NamedTuple):
    """A cost that a metric can be drawn against.

    >>> AXES["megabytes_up"].label
    'megabytes up'
    """

    label: str
    values: Callable[[History], np.ndarray]


AXES: dict[str, Axis] = {
    "round": Axis("rounds", lambda run: run["round"]),
    "exchanges": Axis("exchanges", lambda run: run["exchanges"]),
    "megabytes_up": Axis("megabytes up", lambda run: run["bytes_up"] / 1e6),
    "megabytes_down": Axis("megabytes down", lambda run: run["bytes_down"] / 1e6),
    "megabytes": Axis("megabytes in all", lambda run: (run["bytes_up"] + run["bytes_down"]) / 1e6),
    "gradients": Axis("gradient evaluations", lambda run: run["gradients"]),
    "hessian_vectors": Axis("Hessian-vector products", lambda run: run["hessian_vectors"]),
    "seconds": Axis("virtual seconds", lambda run: run["seconds"]),
    EPSILON: Axis("epsilon", lambda run: _epsilon(run)),
}
"""By name: the label to print, and how to get the values from a history."""


_SUMMARIES = {
    "mean": "mean over clients",
    "worst": "worst client",
    "worst10": "worst tenth of clients",
    "variance": "variance over clients",
    "each": "each client",
}


def metric_label(metric: str) -> str:
    """The name of a metric in words, for axes and tables of figures and pages.

    >>> metric_label("adapted_accuracy/mean"), metric_label("accuracy/worst")
    ('adapted accuracy, mean over clients', 'accuracy, worst client')
    >>> metric_label("balanced_accuracy"), metric_label("distance_x"), metric_label("partial_auc")
    ('balanced accuracy', 'distance of x', 'partial AUC')
    """
    *parts, last = metric.split("/")
    if not parts or last not in _SUMMARIES:
        parts, last = [*parts, last], ""
    words = " ".join(parts).replace("_", " ").split(" ")
    if words[0] == "distance" and len(words[-1]) == 1:  # of a variable
        words.insert(1, "of")
    text = " ".join("AUC" if word == "auc" else word for word in words)
    return f"{text}, {_SUMMARIES[last]}" if last else text


def _epsilon(run: History) -> np.ndarray:
    """Epsilon of a private run; NaN for others, which have none."""
    return run[EPSILON] if EPSILON in run.names else np.full(len(run), np.nan)


class Trace(TypedDict):
    """The first jobs of an asynchronous run and the staleness of all, as ``AsyncTrace.as_dict``."""

    client: list[int]
    began: list[float]
    ended: list[float]
    taken: list[float]
    version: list[int]
    used_in: list[int]
    received: int
    staleness: list[int]


class Finding(TypedDict):
    """One thing that the doctor found wrong with a run."""

    name: str
    finding: str
    advice: str


class Eigenvalues(TypedDict):
    """Of the Hessian of the inner level, or of the only one; None if a value was not finite."""

    round: int
    L: float | None
    largest: float | None
    smallest: float | None


class Examined(TypedDict):
    """What ``rookery doctor`` has written about a run; see ``rookery.doctor.Diagnosis.record``."""

    round: int | None
    verdicts: list[Finding]
    sentences: list[str]
    curvature: list[Eigenvalues]
    figures: dict[str, float | None]
    notes: list[str]


class Holdings(TypedDict):
    """Who holds what: how often each label occurs with each of the first clients."""

    label: str
    classes: list[str]
    clients: dict[str, list[int]]
    n_clients: int


@dataclass(frozen=True)
class Curve:
    """One algorithm in one setting, run once for every seed.

    Attributes:
        name: the label in legends and tables.
        runs: one history per seed.
        seeds: the seeds, in the same order; 0, 1, ... if not given.
        traces: for an asynchronous algorithm, the trace of its first run, by kind of job.
        diverged: for each seed whose run diverged, after how many rounds.
        per_client: for each run, what was measured of every client; empty if nothing was.
        examined: for each seed whose run was examined, what the doctor found.

    >>> Curve("FedAvg", [History([{"round": 0, "loss": 1.0}])]).metrics
    ['loss']
    """

    name: str
    runs: list[History]
    seeds: list[int] = field(default_factory=list)
    traces: Mapping[str, Trace] = field(default_factory=dict)
    diverged: Mapping[int, int] = field(default_factory=dict)
    per_client: Sequence[ClientHistory] = ()
    examined: Mapping[int, Examined] = field(default_factory=dict)

    def __post_init__(self):
        if not self.runs or not all(len(run) for run in self.runs):
            raise ValueError(f"curve {self.name!r} needs at least one run, and none may be empty.")
        if not self.seeds:
            object.__setattr__(self, "seeds", list(range(len(self.runs))))
        if len(self.seeds) != len(self.runs) or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(
                f"curve {self.name!r} has {len(self.runs)} runs and needs a different seed for "
                f"each, got {self.seeds}."
            )
        for name in ("diverged", "examined"):
            if unknown := sorted(set(getattr(self, name)) - set(self.seeds)):
                raise ValueError(
                    f"curve {self.name!r}: {name} names the seeds {unknown}, its seeds are "
                    f"{self.seeds}."
                )
        if self.per_client and len(self.per_client) != len(self.runs):
            raise ValueError(
                f"curve {self.name!r} has {len(self.runs)} runs, but {len(self.per_client)} "
                "histories per client."
            )

    @property
    def metrics(self) -> list[str]:
        """The metrics that every run has measured."""
        shared = set.intersection(*(set(run.names) for run in self.runs))
        return [name for name in self.runs[0].names if name in shared - set(COSTS)]

    @property
    def client_metrics(self) -> list[str]:
        """The metrics that every run has measured of every client."""
        if not self.per_client:
            return []
        shared = set.intersection(*(set(run.metrics) for run in self.per_client))
        return [name for name in self.per_client[0].metrics if name in shared]


@dataclass(frozen=True)
class Comparison:
    """Curves to show together.

    Attributes:
        title: the headline.
        curves: in the order in which to show them.
        settings: for the name of a curve, how its runs were made: nested, and fit for JSON.
        versions: of the software that ran.
        notes: plain text to print below the headline.
        tuning: what was tried to choose settings, as :mod:`rookery.report.sensitivity` shows it.
        goals: whether more or less of a metric is better, as far as its evaluation knows.
        holdings: the labels of every client, if the data has labels and all curves share it.
        wall_seconds: how long the longest run took; None if that is not known.
        findings: sentences that the page begins with; without any it names the best final value.

    >>> curve = Curve("FedAvg", [History([{"round": 0, "loss": 1.0}])])
    >>> Comparison("One curve", [curve]).metrics
    ['loss']
    """

    title: str
    curves: list[Curve]
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    tuning: Mapping[str, object] = field(default_factory=dict)
    goals: Mapping[str, Goal] = field(default_factory=dict)
    holdings: Holdings | None = None
    wall_seconds: float | None = None
    findings: Sequence[str] = ()

    def __post_init__(self):
        names = [curve.name for curve in self.curves]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a comparison needs curves with different names, got {names}.")
        if unknown := set(self.settings) - set(names):
            raise ValueError(f"settings for {sorted(unknown)}, but the curves are {names}.")

    @property
    def metrics(self) -> list[str]:
        """The metrics that at least one curve has measured."""
        return list(dict.fromkeys(name for curve in self.curves for name in curve.metrics))

    @property
    def client_metrics(self) -> list[str]:
        """The metrics that at least one curve has measured of every client."""
        return list(dict.fromkeys(name for curve in self.curves for name in curve.client_metrics))

    def goal_of(self, metric: str) -> Goal | None:
        """Whether more or less of a metric is better: declared, or plain from its name, or None.

        >>> curve = Curve("FedAvg", [History([{"round": 0, "loss": 1.0, "size": 1.0}])])
        >>> one = Comparison("One curve", [curve])
        >>> one.goal_of("loss"), one.goal_of("size")
        ('min', None)
        """
        return self.goals.get(metric) or goal_by_name(metric)

    def styles(self) -> list[palette.Style]:
        """The number of the colour and of the stroke of every curve.

        A curve has the colour that its algorithm has everywhere, see :mod:`rookery.report.palette`,
        and a stroke that tells its setting apart. Settings of one algorithm have a colour each.

        >>> curves = [Curve(name, [History([{"round": 0}])]) for name in ("a", "b", "c")]
        >>> named = {"a": "FedNest", "b": "FedMSA", "c": "FedNest"}
        >>> settings = {name: {"algorithm": {"name": own}} for name, own in named.items()}
        >>> Comparison("Three", curves, settings).styles()
        [(0, 0), (1, 0), (0, 1)]
        """
        return palette.styles(
            [palette.algorithm_of(c.name, self.settings.get(c.name, {})) for c in self.curves]
        )

    def groups(self) -> dict[str, list[int]]:
        """The curves of every panel of small multiples: by algorithm, or one each.

        >>> curves = [Curve(str(i), [History([{"round": 0}])]) for i in range(3)]
        >>> settings = {str(i): {"algorithm": {"name": "AAB"[i]}} for i in range(3)}
        >>> Comparison("Three", curves, settings).groups()
        {'A': [0, 1], 'B': [2]}
        """
        names = self._algorithms()
        if len(set(names)) == 1:
            names = [curve.name for curve in self.curves]
        return {name: [i for i, own in enumerate(names) if own == name] for name in names}

    def _algorithms(self) -> list[str]:
        """The algorithm of every curve, or else the curve's own name."""
        return [
            _algorithm(self.settings.get(curve.name, {})) or curve.name for curve in self.curves
        ]

    def require_metric(self, metric: str) -> str:
        """Return the metric, or raise if no curve has measured it."""
        if metric not in self.metrics:
            known = ", ".join(self.metrics) or "none"
            raise ValueError(f"no curve has measured {metric!r}; there are {known}.")
        return metric


def joined(comparisons: Sequence[Comparison]) -> Comparison:
    """Merge comparisons; a curve whose name occurs twice is prefixed with its title.

    >>> run = History([{"round": 0, "loss": 1.0}])
    >>> both = joined([Comparison(title, [Curve("FedAvg", [run])]) for title in ("A", "B")])
    >>> both.title, [curve.name for curve in both.curves]
    ('A / B', ['A: FedAvg', 'B: FedAvg'])
    """
    names = [curve.name for c in comparisons for curve in c.curves]
    curves, settings = [], {}
    for comparison in comparisons:
        for curve in comparison.curves:
            is_unique = names.count(curve.name) == 1
            name = curve.name if is_unique else f"{comparison.title}: {curve.name}"
            curves.append(replace(curve, name=name))
            settings[name] = comparison.settings.get(curve.name, {})
    title = " / ".join(dict.fromkeys(c.title for c in comparisons))
    goals: dict[str, Goal] = {}
    for comparison in comparisons:
        goals |= comparison.goals
    return Comparison(title, curves, settings, comparisons[0].versions, goals=goals)


def _algorithm(settings: Mapping[str, object]) -> str | None:
    """The name of a curve's algorithm, as its settings have it."""
    table = settings.get("algorithm")
    name = table.get("label") or table.get("name") if isinstance(table, Mapping) else None
    return name if isinstance(name, str) else None


def require_axis(axis: str) -> str:
    """Return the name of an axis, or raise if there is none of that name."""
    if axis not in AXES:
        raise ValueError(f"unknown axis {axis!r}; choose one of {', '.join(AXES)}.")
    return axis


def axis_values(run: History, axis: str) -> np.ndarray:
    """What a run had spent at each of its evaluations.

    >>> axis_values(History([{"round": 0}, {"round": 10}]), "round").tolist()
    [0.0, 10.0]
    """
    return AXES[require_axis(axis)].values(run)


def metric_values(run: History, metric: str) -> np.ndarray:
    """What a run measured at each of its evaluations, with NaN for whatever is not finite.

    >>> metric_values(History([{"loss": 1.0}, {"loss": None}]), "loss").tolist()
    [1.0, nan]
    """
    values = run[metric]
    return np.where(np.isfinite(values), values, np.nan)


class Band(NamedTuple):
    """A curve's mean over seeds with its bounds, at each value of an axis."""

    axis: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_and_interval(curve: Curve, axis: str, metric: str) -> Band:
    """A curve's mean over seeds and its 95 % interval along an axis.

    Seeds that were evaluated at the same costs are averaged row by row. If the costs differ, as
    when the number of exchanges is random, each seed is interpolated linearly at all the costs
    at which any seed was evaluated, within the range that all seeds reach. A seed that ended
    early, or diverged, therefore ends the curve. NaN in one seed leaves a gap in the mean.
    """
    xs = [axis_values(run, axis) for run in curve.runs]
    ys = [metric_values(run, metric) for run in curve.runs]
    if all(np.array_equal(x, xs[0]) for x in xs):
        over_seeds = interval(np.stack(ys))
        return Band(xs[0], over_seeds.mean, over_seeds.low, over_seeds.high)
    grid = np.unique(np.concatenate(xs))
    grid = grid[(grid >= max(x[0] for x in xs)) & (grid <= min(x[-1] for x in xs))]
    aligned = [np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)]
    over_seeds = interval(np.stack(aligned))
    return Band(grid, over_seeds.mean, over_seeds.low, over_seeds.high)


def final_values(curve: Curve, metric: str) -> list[float]:
    """The last measured value of every seed; NaN for a seed that diverged."""
    return [
        math.nan if seed in curve.diverged else float(metric_values(run, metric)[-1])
        for seed, run in zip(curve.seeds, curve.runs, strict=True)
    ]


def client_values(curve: Curve, metric: str) -> dict[str, list[float]]:
    """By the name of a client, the last values of a metric, one per seed; NaN if not finite.

    >>> of_clients = ClientHistory([{"round": 9, "metric": "f", "clients": {"Lund": 1.0}}])
    >>> run = History([{"round": 9, "f": 1.0}])
    >>> client_values(Curve("FedAvg", [run], per_client=[of_clients]), "f")
    {'Lund': [1.0]}
    """
    last = [run.last(metric) for run in curve.per_client]
    names = dict.fromkeys(name for values in last for name in values)
    return {name: [_finite(values.get(name)) for values in last] for name in names}


def _finite(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else value


def divergence(curve: Curve) -> str:
    """Which seeds of a curve diverged, and when; empty if none did.

    >>> run = History([{"round": 0, "loss": 1.0}])
    >>> divergence(Curve("FedAvg", [run, run], diverged={1: 12}))
    'diverged at round 12, seed 1'
    """
    return "; ".join(
        f"diverged at round {curve.diverged[seed]}, seed {seed}"
        for seed in curve.seeds
        if seed in curve.diverged
    )


@dataclass(frozen=True)
class Cost:
    """The cost of reaching a target.

    Attributes:
        per_seed: the cost for every seed, None if the seed never reached the target.
        interval: mean and bounds over the seeds that did; NaN if none did.
        reached: how many seeds did.
        total: how many seeds there are.
    """

    per_seed: list[float | None]
    interval: Interval[float]
    reached: int
    total: int


def cost_to_reach(
    curve: Curve, metric: str, target: float, axis: str, higher_is_better: bool = True
) -> Cost:
    """The cost at which each seed first reaches a target, interpolated between evaluations.

    The mean is over the seeds that reach it, so read it together with their number.

    >>> run = History([{"round": 0, "loss": 2.0}, {"round": 10, "loss": 1.0}])
    >>> cost_to_reach(Curve("c", [run]), "loss", 1.5, "round", higher_is_better=False).per_seed
    [5.0]
    """
    sign = 1 if higher_is_better else -1
    per_seed = [
        _first_reach(axis_values(run, axis), sign * metric_values(run, metric), sign * target)
        for run in curve.runs
    ]
    reached = [cost for cost in per_seed if cost is not None]
    return Cost(per_seed, interval(reached or [math.nan]), len(reached), len(per_seed))


def _first_reach(x: np.ndarray, y: np.ndarray, target: float) -> float | None:
    there = np.flatnonzero(y >= target)
    if not len(there):
        return None
    i = there[0]
    if i == 0 or np.isnan(y[i - 1]):
        return float(x[i])
    return float(x[i - 1] + (target - y[i - 1]) / (y[i] - y[i - 1]) * (x[i] - x[i - 1]))


def best_curve(curves: Sequence[Curve], metric: str, higher_is_better: bool = True) -> Curve:
    """The curve with the best mean of its last values; never one whose mean is not finite."""
    sign = 1 if higher_is_better else -1
    means = [sign * np.mean(final_values(curve, metric)) for curve in curves]
    return curves[int(np.argmax(np.where(np.isnan(means), -np.inf, means)))]


@dataclass(frozen=True)
class PairedTest:
    """Final values of two curves compared seed by seed, the first minus the second.

    Attributes:
        seeds: the seeds that both curves have.
        differences: one per seed.
        interval: mean difference and its bounds.
        p_student: two-sided, of the paired t-test. NaN with one seed, and if all differences are
            equal but not zero, as the test divides by their spread.
        p_flips: two-sided and exact: the fraction of all sign flips of the differences whose mean
            is as far from zero. With n seeds it is at least 2 / 2^n. NaN if a difference is NaN,
            or with more than 20 seeds.
    """

    seeds: list[int]
    differences: np.ndarray
    interval: Interval[float]
    p_student: float
    p_flips: float


def paired_test(curve_a: Curve, curve_b: Curve, metric: str) -> PairedTest:
    """Whether two curves end at different values, over the seeds that both have.

    >>> ends = [0.1, 0.2], [0.4, 0.3]
    >>> a, b = (Curve("c", [History([{"round": 9, "f": v}]) for v in values]) for values in ends)
    >>> paired_test(a, b, "f").differences.round(3).tolist()
    [-0.3, -0.1]
    """
    last_a = dict(zip(curve_a.seeds, final_values(curve_a, metric), strict=True))
    last_b = dict(zip(curve_b.seeds, final_values(curve_b, metric), strict=True))
    seeds = [seed for seed in last_a if seed in last_b]
    if not seeds:
        raise ValueError(f"{curve_a.name!r} and {curve_b.name!r} have no seed in common.")
    differences = np.array([last_a[seed] - last_b[seed] for seed in seeds])
    # metrics are often in single precision: smaller differences than this are rounding
    rounding = 1e-7 * max(abs(last[seed]) for last in (last_a, last_b) for seed in seeds)
    p_student, p_flips = _p_student(differences, rounding), _p_flips(differences)
    return PairedTest(seeds, differences, interval(differences.tolist()), p_student, p_flips)


def _p_student(differences: np.ndarray, rounding: float) -> float:
    n, mean = len(differences), differences.mean()
    if n == 1 or np.isnan(mean):
        return math.nan
    spread = differences.std(ddof=1)
    if spread <= rounding:
        return 1.0 if abs(mean) <= rounding else math.nan
    return 2 * student_cdf(-abs(mean / spread) * math.sqrt(n), n - 1)


def _p_flips(differences: np.ndarray) -> float:
    if len(differences) > 20 or np.isnan(differences).any():
        return math.nan  # each further seed doubles the number of flips
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    # equal sums in another order differ by rounding
    slack = 1e-12 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= abs(differences.sum()) - slack))
