"""Costs that are told before a run are those of the run."""

import jax
import pytest

from rookery.engines.compiled import Compiled
from rookery.engines.engine import Program
from rookery.experiment import config
from rookery.experiment.costs import trace_costs
from rookery.experiment.task_loader import TaskLoader
from rookery.program.aggregate import Mean
from rookery.program.algorithm import first_state

RATES = {"outer_lr": 0.01, "inner_lr": 0.05}
LOG_NORMAL = {"name": "LogNormalDelay", "median": 1.0}
CASES = {
    "random length": {
        "algorithm": {
            "name": "FedNest", **RATES, "clients": 2, "inner_steps": 2,
            "ihgp": {"name": "FedIHGP", "terms": 4},
        }
    },
    "chains": {"algorithm": {"name": "FedMBO", **RATES, "clients": 3}},
    "asynchronous": {
        "algorithm": {"name": "AFBO", "inner_lr": 0.05, "outer_lr": 0.01, "wait_for": 2},
        "clock": {"delay": LOG_NORMAL},
    },
    "asynchronous, work takes time": {
        "algorithm": {
            "name": "AFBO", **RATES, "wait_for": 2, "inner_steps": [1, 2, 3, 4, 5],
        },
        "clock": {"delay": LOG_NORMAL, "compute": {"name": "Compute", "gradient": 0.1}},
    },
}  # fmt: skip


LONG = ("chains", "asynchronous", "asynchronous, work takes time", "random length")


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CASES],
)
def test_costs_before_a_run_are_those_of_the_run(case):
    tables = {"task": {"name": "quadratic", "n_clients": 5}, "run": {"rounds": 1}, **CASES[case]}
    (curve,) = config.build(tables).curves
    task = TaskLoader(is_blank=True).load(curve)
    program = Program(task.problem, task.population, curve.clock, Mean())
    runner = Compiled().prepare(program, [curve.algorithm])
    state = first_state(curve.algorithm, task.problem, 5, task.start(0))
    (real,) = runner.advance([state], [jax.random.key(0)], 0, [11])
    traced = trace_costs(curve, task)
    for field in ("exchanges", "messages", "bytes_down", "bytes_up"):
        assert [getattr(a, field) for a in traced] == [getattr(b, field) for b in real.ledgers]
    assert [a.seconds for a in traced] == pytest.approx([b.seconds for b in real.ledgers])
