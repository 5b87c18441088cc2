"""How an algorithm enters the benchmark: by its name alone.

The registry has the names, an algorithm's signature its settings, and its own checks say which
problems it solves. What is tuned is ``outer_lr`` or ``lr``, ``inner_lr``, and every other step size
without a default. All other settings have their defaults, but for those of :data:`VALUES`, which go
by the setting's name and are the same for every algorithm that has it.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import rookery as rk
from experiments.benchmark import suite
from experiments.benchmark.suite import BATCH, PER_EXCHANGE
from rookery.experiment.registry import ALGORITHMS
from rookery.program.algorithm import check_constraints
from rookery.tasks.task import Task

FACTOR = 5.0
"""Between two values of a step size."""
N_FIRST, N_SECOND = 3, 3
"""Values of the two step sizes; an algorithm with one of them has N_FIRST * N_SECOND values."""

LOCAL_STEPS = 5
VALUES: dict[str, object] = {
    "clients": PER_EXCHANGE,
    "batch_size": BATCH,
    "local_steps": LOCAL_STEPS,
    "inner_steps": LOCAL_STEPS,
    "own_steps": LOCAL_STEPS,
    "probability": 1 / LOCAL_STEPS,  # of an exchange after a local step
    "buffer_size": PER_EXCHANGE,
    "cut_every": LOCAL_STEPS,  # with the defaults, the first cut would end after 110 exchanges
    "admm": rk.parts.ADMM(rounds=LOCAL_STEPS),
}
REQUIRED: dict[str, object] = {
    "codec": rk.parts.StochasticRounding(4),
    "horizon": 100,
    "mu": 0.1,
    "q": 0.1,
    "alpha": 0.1,
    "epsilon": 0.01,
    "smoothing": 0.1,
    "beta": 0.5,
    "stage_rounds": 20,
}
"""Settings that are given only where they have no default."""
OTHERWISE: tuple[dict[str, object], ...] = (
    {"gamma": 1.0},
    {"server_lr": 3},
    {"server_lr": 2},
    {"clients": None},
)
"""Settings that are given where an algorithm refuses a problem without them, the first that help.

A number for ``server_lr`` is how many variables the server has: it steps as its clients do.
"""


@dataclass(frozen=True)
class Entrant:
    """An algorithm with its settings, but for the step sizes that are tuned.

    Attributes:
        name: of the algorithm.
        steps: names of the step sizes, that of the outer or only variable first.
        fixed: all other settings.
    """

    name: str
    steps: tuple[str, ...]
    fixed: Mapping[str, object]

    def make(self, **steps: float) -> rk.AbstractAlgorithm:
        """The algorithm with these step sizes."""
        fixed = dict(self.fixed)
        if isinstance(blocks := fixed.get("server_lr"), int):
            first, second = (steps[name] for name in self.steps)
            fixed["server_lr"] = (first, *[second] * (blocks - 1))
        return ALGORITHMS[self.name](**fixed, **steps)

    def grid(self, centres: tuple[float, float], n: tuple[int, int]) -> dict[str, list[float]]:
        """Step sizes to try, as many points for one step size as for two.

        >>> Entrant("SOBA", ("outer_lr", "inner_lr"), {}).grid((1.0, 0.5), (2, 1))
        {'outer_lr': [0.4472, 2.236], 'inner_lr': [0.5]}
        >>> Entrant("FedAvg", ("lr",), {}).grid((1.0, 0.5), (1, 3))
        {'lr': [0.4472, 1.0, 2.236]}
        """
        if len(self.steps) == 1:
            return {self.steps[0]: _around(centres[0], n[0] * n[1], FACTOR**0.5)}
        return {
            name: _around(centre, size, FACTOR)
            for name, centre, size in zip(self.steps, centres, n, strict=True)
        }


def _around(centre: float, n: int, factor: float) -> list[float]:
    return [float(f"{centre * factor ** (i - (n - 1) / 2):.4g}") for i in range(n)]


def entrant(name: str, **given: object) -> Entrant:
    """An algorithm by its name; an error if it needs a setting that the benchmark has no value for.

    Args:
        name: in the registry.
        given: settings besides.
    """
    parameters = inspect.signature(ALGORITHMS[name]).parameters
    needed = {key for key, p in parameters.items() if p.default is p.empty}
    first = [key for key in ("outer_lr", "lr") if key in parameters]
    others = [key for key in parameters if key == "inner_lr" or (key in needed and _is_step(key))]
    steps = tuple(dict.fromkeys([*first[:1], *others]))
    fixed = {key: value for key, value in VALUES.items() if key in parameters}
    fixed |= {key: value for key, value in REQUIRED.items() if key in needed} | given
    if missing := sorted(needed - {*steps, *fixed}):
        raise ValueError(
            f"{name} needs {', '.join(missing)}. Give it a default, or a value by its name in "
            "REQUIRED of experiments/benchmark/entrants.py."
        )
    if not 1 <= len(steps) <= 2:
        raise ValueError(
            f"{name} has the step sizes {', '.join(steps) or 'none'}; the benchmark tunes one or "
            "two. Give the others a default."
        )
    return Entrant(name, steps, fixed)


def _is_step(name: str) -> bool:
    return name == "lr" or name.endswith("_lr")


def entering(name: str, task: Task) -> Entrant:
    """The algorithm with the settings with which it takes a task; its own error if it does not."""
    known = inspect.signature(ALGORITHMS[name]).parameters
    refusal: Exception | None = None
    starts = getattr(task.problem, "starts", None)
    given = ({"inner_start": starts[0]},) if starts else ()
    for further in ({}, *OTHERWISE, *given):
        if all(key in known for key in further):
            one = entrant(name, **further)
            try:
                _check(one, task)
                return one
            except (TypeError, ValueError) as error:
                refusal = refusal or error
    assert refusal is not None, "the plain settings are always tried"
    raise refusal


def _check(one: Entrant, task: Task) -> None:
    """Raise what a run of the algorithm on the task would raise."""
    algorithm = one.make(**dict.fromkeys(one.steps, 0.1))
    algorithm.check(task.problem, task.population.n_clients)
    check_constraints(algorithm, task.problem)
    algorithm.check_start(task.problem, task.start(0), task.population.example)


@cache
def field(
    kind: str, form: str, names: tuple[str, ...] = tuple(ALGORITHMS)
) -> tuple[dict[str, Entrant], dict[str, str]]:
    """The algorithms that enter for a form of a task, and why the others do not."""
    task, entered, refused = suite.task(kind, form, "digits", "iid"), {}, {}
    for name in names:
        try:
            entered[name] = entering(name, task)
        except (TypeError, ValueError) as error:
            refused[name] = str(error)
    return entered, refused
