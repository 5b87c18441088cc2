"""One cell of the benchmark: an algorithm is tuned on a task and then run with three seeds.

Every algorithm has the same number of exchanges, and so as many rounds as fit into them. The grid
has as many points for every algorithm; a choice at its edge extends it, by the same factor and at
most as often for all. The grid is judged with a seed of its own, on rows that neither clients nor
figures use. All runs of an algorithm go through one program of three lanes.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

import rookery as rk
from experiments.benchmark import suite
from experiments.benchmark.entrants import LOCAL_STEPS, N_FIRST, N_SECOND, Entrant, entering
from experiments.benchmark.suite import BATCH, KINDS, N_CLIENTS, PER_EXCHANGE
from rookery import tree
from rookery.program.algorithm import numbers_to_arrays
from rookery.program.delays import Clock, Compute, LogNormalDelay, Stragglers
from rookery.runner.results import Results
from rookery.runner.run_state import Result
from rookery.runner.search import SearchPlan, Setting, at_ends, chosen, search
from rookery.tasks.task import Task


class Cell(NamedTuple):
    """One entry of the table."""

    algorithm: str
    task: str
    form: str
    data: str
    split: str


class Delays(NamedTuple):
    """How long clients take: log-normal delays, of which some clients' are longer by a factor."""

    sigma: float
    factor: float


MEDIAN, BANDWIDTH, PER_GRADIENT = 0.1, 1e6, 1e-4
"""Seconds of a delay, bytes per second, seconds per gradient of one row."""
SLOW = (0, 1, 2, 3)
DELAYS = {
    "heavy-tailed": Delays(1.0, 1.0),
    "even": Delays(0.1, 1.0),
    "stragglers": Delays(0.1, 10.0),
}
"""The first is that of tuning: asynchronous methods compute something else under each."""


@dataclass(frozen=True)
class Size:
    """How much is spent on a cell.

    Attributes:
        exchanges: of every run.
        evaluations: on the way.
        grid: values of the first and of the second step size.
        extensions: how often a choice at the edge extends the grid, at most.
        seeds: of the figures.
        tuning_seed: of the grid.
        lanes: runs in one program.
    """

    exchanges: int = 100
    evaluations: int = 10
    grid: tuple[int, int] = (N_FIRST, N_SECOND)
    extensions: int = 2
    seeds: tuple[int, ...] = (0, 1, 2)
    tuning_seed: int = 10
    lanes: int = 3


FULL = Size()
QUICK = Size(exchanges=20, evaluations=4, grid=(2, 1), extensions=1, seeds=(0, 1), lanes=2)
PROBE = 5
"""Rounds that tell how many exchanges a usual round has."""


def clock(name: str) -> Clock:
    """The delays of a name, its numbers as arrays: all share one compiled program."""
    delays = DELAYS[name]
    delay = Stragglers(LogNormalDelay(MEDIAN, delays.sigma), SLOW, delays.factor)
    return numbers_to_arrays(Clock(delay, bandwidth=BANDWIDTH, compute=Compute(PER_GRADIENT)))


def budgets(task: Task, exchanges: int) -> dict[str, float]:
    """What all algorithms may spend on each axis; it depends on the task and not on algorithms.

    Bytes are those of half of the exchanges, if ten clients receive and send the problem's
    variables; gradient evaluations those of all exchanges, if ten clients take five steps; seconds
    those of half of the exchanges with both.
    """
    nbytes, rows = tree.nbytes(task.start(0)), BATCH * LOCAL_STEPS
    found = {
        "exchanges": exchanges,
        "megabytes": exchanges / 2 * PER_EXCHANGE * 2 * nbytes / 1e6,
        "gradients": exchanges * PER_EXCHANGE * rows,
    }
    fixed = 2 * nbytes / BANDWIDTH + rows * PER_GRADIENT
    rng = np.random.default_rng(0)
    for name, (sigma, factor) in DELAYS.items():
        delays = MEDIAN * np.exp(sigma * rng.standard_normal((2000, N_CLIENTS)))
        delays[:, list(SLOW)] *= factor
        slowest = rng.permuted(delays, axis=1)[:, :PER_EXCHANGE].max(1).mean()
        found[f"seconds, {name}"] = float(exchanges / 2 * (slowest + fixed))
    return found


class Tuned(NamedTuple):
    """What tuning has found.

    Attributes:
        setting: the chosen step sizes; None if every setting diverged.
        edge: the step sizes that are at an end of their grid, with the side.
        widened: the step sizes whose grid was extended, once for each time.
        tried: every setting with its value on the rows for tuning and on the test rows.
    """

    setting: Setting | None
    edge: list[tuple[str, str]]
    widened: list[str]
    tried: list[dict[str, object]]


class Measurement:
    """The runs of one cell."""

    def __init__(self, cell: Cell, size: Size):
        self.size, self.kind = size, KINDS[cell.task]
        self.task = suite.task(cell.task, cell.form, cell.data, cell.split)
        self.entrant = entering(cell.algorithm, self.task)
        self.tried: list[dict[str, object]] = []
        self.rounds = self._rounds_within(size.exchanges)

    def _rounds_within(self, exchanges: int) -> int:
        """How many rounds the exchanges suffice for.

        A first round may cost more than the others, and a round that comes now and then may cost
        much more. So a short probe tells what a usual round costs, and a probe of as many rounds as
        that would allow shows what they do cost; if they leave room for more, so does a longer one.
        """
        costs = self._costs(PROBE)
        usual = (costs[-1] - costs[0]) / max(len(costs) - 1, 1) or costs[0]
        most = 1 + max(0, int((exchanges - costs[0]) / usual))
        while True:
            costs = self._costs(most)
            within = sum(cost <= exchanges for cost in costs)
            if within < len(costs):
                return max(1, within)
            more = int((exchanges - costs[-1]) * len(costs) / costs[-1])
            if more == 0 or len(costs) < most:  # the probe diverged: missing rounds cost as much
                return most
            most += more

    def _costs(self, rounds: int) -> list[float]:
        """The exchanges of one round, two rounds, and so on, at the centre of the grid."""
        found = self._swept(self._settings_at_centre(), [self.size.tuning_seed], rounds, 1)
        return [float(value) for value in found[0].history["exchanges"][1:]]

    def _settings_at_centre(self) -> list[Setting]:
        grid = self.entrant.grid(self.kind.centres, (1, 1))
        return [{name: value[0] for name, value in grid.items()}]

    def tuned(self) -> Tuned:
        """The choice of step sizes and how it came about."""
        size = self.size
        space = self.entrant.grid(self.kind.centres, size.grid)
        plan = SearchPlan(seeds=(size.tuning_seed,), extend=size.extensions)
        found = search(space, "max", self._tried, plan)
        best = chosen(found.trials, "max")
        setting = None if best is None else best.setting
        edge = [] if setting is None else at_ends(found.space, setting)
        return Tuned(setting, edge, found.widened, self.tried)

    def _tried(
        self, settings: Mapping[int, Setting], seeds: Sequence[int], share: float
    ) -> list[list[float | None]]:
        """The metric on the rows for tuning at the end; None where a run diverged."""
        # a setting that the algorithm refuses, as a share above one, counts like one that diverges
        allowed = {
            n: setting for n, setting in settings.items() if _is_allowed(self.entrant, setting)
        }
        results = self._swept(list(allowed.values()), seeds, self.rounds, self.rounds)
        values = {n: last(one, self.kind.holdout) for n, one in zip(allowed, results, strict=True)}
        tests = {n: last(one, self.kind.metric) for n, one in zip(allowed, results, strict=True)}
        for n, setting in settings.items():
            own = {"setting": setting, "holdout": values.get(n), "test": tests.get(n)}
            self.tried.append(own)
        return [[values.get(n)] for n in settings]

    def figures(self, setting: Setting) -> dict[str, object]:
        """Curves of all seeds under all delays."""
        every = max(1, self.rounds // self.size.evaluations)
        curves = {}
        for name in DELAYS:
            results = self._swept([setting], self.size.seeds, self.rounds, every, name)
            curves[name] = [curve(one, self.kind.metric) for one in results]
        main, *others = curves.values()
        for other in others:
            for mine, first in zip(other, main, strict=True):
                for name in [name for name in mine if mine[name] == first[name]]:
                    del mine[name]  # of synchronous algorithms delays change the seconds alone
        return curves

    def _swept(
        self,
        settings: Sequence[Setting],
        seeds: Sequence[int],
        rounds: int,
        every: int,
        delays: str = next(iter(DELAYS)),
    ) -> Results:
        """All settings with all seeds, filled up to whole programs."""
        some = self.task
        runs = [
            rk.Run(self.entrant.make(**setting), some.start(seed), seed)
            for setting in settings
            for seed in seeds
        ]
        if not runs:
            return Results()
        fill = [runs[-1]] * (-len(runs) % self.size.lanes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rk.stop.DivergenceWarning)
            results = rk.sweep(
                runs + fill, some.problem, some.population, rounds=rounds, evaluate=some.evaluate,
                evaluate_every=every, clock=clock(delays), batch=self.size.lanes, guard=None,
            )  # fmt: skip
        return Results(results[: len(runs)])


def _is_allowed(entrant: Entrant, setting: Setting) -> bool:
    try:
        entrant.make(**setting)
    except ValueError:
        return False
    return True


def last(result: Result, metric: str) -> float | None:
    """The metric at the end; None if the run diverged."""
    value = float(result.history[metric][-1])
    return round(value, 5) if result.status != "diverged" and np.isfinite(value) else None


def curve(result: Result, metric: str) -> dict[str, object]:
    """What a run measured and what it had spent by then; a run that diverged ends with 0."""
    history = result.history
    work = np.asarray(history["gradients"]) + 2 * np.asarray(history["hessian_vectors"])
    nbytes = np.asarray(history["bytes_up"]) + np.asarray(history["bytes_down"])
    value = np.nan_to_num(np.asarray(history[metric], float), nan=0.0, posinf=0.0, neginf=0.0)
    is_diverged = result.status == "diverged"
    if is_diverged:
        value[-1] = 0.0
    return {
        **({"diverged": True} if is_diverged else {}),
        "value": [round(float(v), 4) for v in value],
        "exchanges": [int(v) for v in history["exchanges"]],
        "megabytes": [float(f"{v / 1e6:.5g}") for v in nbytes],
        "gradients": [int(v) for v in work],
        "seconds": [float(f"{v:.5g}") for v in history["seconds"]],
    }


def measure(cell: Cell, size: Size) -> dict[str, object]:
    """A line of the results."""
    begin = time.process_time()
    own = Measurement(cell, size)
    tuned = own.tuned()
    return {
        **cell._asdict(),
        "metric": own.kind.metric,
        "rounds": own.rounds,
        "budgets": {
            name: float(f"{v:.5g}") for name, v in budgets(own.task, size.exchanges).items()
        },
        **tuned._asdict(),
        "curves": None if tuned.setting is None else own.figures(tuned.setting),
        "size": asdict(size),
        "cpu_seconds": round(time.process_time() - begin, 1),
    }
