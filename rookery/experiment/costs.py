"""What a round of a curve costs, before it is run."""

import jax
import numpy as np

from rookery.engines.compiled import Compiled
from rookery.engines.engine import Program
from rookery.experiment.config import CurveSettings
from rookery.program.aggregate import Mean
from rookery.program.algorithm import first_state
from rookery.program.ledger import Ledger
from rookery.tasks.task import Task


def trace_costs(curve: CurveSettings, task: Task, rounds: int = 11) -> list[Ledger]:
    """The exchanges and bytes of some rounds."""
    curve.algorithm.check(task.problem, task.population.n_clients)
    start = jax.tree.map(np.asarray, task.start(0))
    program = Program(task.problem, task.population, curve.clock, Mean())
    runner = Compiled().prepare(program, [curve.algorithm])
    state = first_state(curve.algorithm, task.problem, task.population.n_clients, start)
    (progress,) = runner.advance([state], [jax.random.key(0)], 0, [rounds])
    return progress.ledgers
