"""The runners of a batch: one for all its runs, and one for each that a guard has taken back."""

from collections.abc import Callable, Hashable, Sequence

import equinox as eqx
import jax

from rookery.engines.engine import AbstractEngine, AbstractRunner, Event, Program, Progress
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.types import Tree


def structure(algorithm: AbstractAlgorithm, start: Tree) -> Hashable:
    """What must be equal for two runs to share one compiled program."""
    numbers, rest = eqx.partition(numbers_to_arrays(algorithm), eqx.is_array)
    shapes = [f"{a.dtype}{a.shape}" for a in jax.tree.leaves((numbers, start))]
    leaves, tree = jax.tree.flatten((rest, jax.tree.structure((numbers, start))))
    return tuple(shapes), tree, tuple(leaves)


class BatchRunner(AbstractRunner):
    """Runs in step, some of which continue with another algorithm from an earlier round.

    Those have a runner of their own, so that the other runs compute what they would without them.

    Args:
        engine: where to run.
        program: what the runs have in common.
        algorithms: of the runs, which have one structure.
        note: called with the number of a run and an event of it.
    """

    def __init__(
        self,
        engine: AbstractEngine,
        program: Program,
        algorithms: Sequence[AbstractAlgorithm],
        note: Callable[[int, Event], None],
    ):
        self._engine, self._program, self._note = engine, program, note
        self._algorithms = list(algorithms)
        self._common: AbstractRunner | None = None
        self._alone: dict[int, tuple[AbstractRunner, int]] = {}

    def replace(self, i: int, algorithm: AbstractAlgorithm, lost: int) -> None:
        """Continue run i with another algorithm, whose state has the same structure.

        Args:
            i: the number of the run.
            algorithm: the other algorithm.
            lost: how many rounds the run is ahead of its state, whose round the algorithm sees.
        """
        if i in self._alone:
            self._alone.pop(i)[0].close()
        if len(self._algorithms) == 1 and self._common is not None:
            self._common.close()
            self._common = None
        runner = self._prepared([algorithm], lambda _, event: self._note(i, event))
        self._alone[i] = runner, lost

    def close(self) -> None:
        """Release what the runners hold outside this process."""
        for runner, _ in self._alone.values():
            runner.close()
        if self._common is not None:
            self._common.close()

    def agreed(self, number: float) -> float:
        """A number that all processes of the run must have in common."""
        runner = self._common or next(iter(self._alone.values()))[0]
        return runner.agreed(number)

    def advance(self, states, keys, first, n, *, may_reuse=False) -> list[Progress]:
        """As :meth:`rookery.engines.engine.AbstractRunner.advance`, in rounds of the run."""
        together = [0 if i in self._alone else count for i, count in enumerate(n)]
        done = [Progress(state, [], True) for state in states]
        if any(together):
            if self._common is None:
                self._common = self._prepared(self._algorithms, self._note)
            done = self._common.advance(states, keys, first, together, may_reuse=may_reuse)
        for i, (runner, lost) in self._alone.items():
            if n[i]:
                (done[i],) = runner.advance(
                    [states[i]], [keys[i]], first - lost, [n[i]], may_reuse=may_reuse
                )
        return done

    def _prepared(
        self, algorithms: Sequence[AbstractAlgorithm], note: Callable[[int, Event], None]
    ) -> AbstractRunner:
        runner = self._engine.prepare(self._program, algorithms)
        runner.follow(note)
        return runner
