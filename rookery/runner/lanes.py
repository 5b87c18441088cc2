"""The runners of a batch: one for all its runs, until the steps of some become another program."""

from collections.abc import Callable, Hashable, Sequence

import equinox as eqx
import jax

from rookery.engines.engine import AbstractEngine, AbstractRunner, Event, Program, Progress
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.types import Key, Tree


def structure(algorithm: AbstractAlgorithm, start: Tree = None) -> Hashable:
    """What must be equal for two runs to share one compiled program."""
    numbers, rest = eqx.partition(numbers_to_arrays(algorithm), eqx.is_array)
    shapes = [f"{a.dtype}{a.shape}" for a in jax.tree.leaves((numbers, start))]
    leaves, tree = jax.tree.flatten((rest, jax.tree.structure((numbers, start))))
    return tuple(shapes), tree, tuple(leaves)


class Lanes:
    """Runs in step, whose algorithms a guard may replace.

    An algorithm that differs from the old one in numbers stays in the common program. Another one
    gets a runner of its own, so that the other runs compute what they would without it.

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
        self._alone: dict[int, AbstractRunner] = {}

    @classmethod
    def of_originals(
        cls,
        engine: AbstractEngine,
        program: Program,
        originals: Sequence[AbstractAlgorithm],
        present: Sequence[AbstractAlgorithm],
        note: Callable[[int, Event], None],
    ) -> "Lanes":
        """Runs some of whose algorithms have been replaced before."""
        lanes = cls(engine, program, originals, note)
        for i, algorithm in enumerate(present):
            lanes.replace(i, algorithm)
        return lanes

    def replace(self, i: int, algorithm: AbstractAlgorithm) -> None:
        """Continue run i with another algorithm, whose state has the same structure."""
        if algorithm is self._algorithms[i]:
            return
        if i in self._alone:
            self._alone.pop(i).close()
        if structure(algorithm) == structure(self._algorithms[i]):
            self._algorithms[i] = algorithm
            if self._common is not None:
                self._common.close()
                self._common = None
        elif len(self._algorithms) == 1:
            self._algorithms = [algorithm]
            if self._common is not None:
                self._common.close()
                self._common = None
        else:
            self._alone[i] = self._prepared([algorithm], lambda _, event: self._note(i, event))

    def close(self) -> None:
        """Release what the runners hold outside this process."""
        for runner in [*self._alone.values(), *([self._common] if self._common else [])]:
            runner.close()

    def agreed(self, number: float) -> float:
        """A number that all processes of the run must have in common."""
        return self._runner().agreed(number)

    def advance(
        self,
        states: Sequence[Tree],
        keys: Sequence[Key],
        first: int,
        n: Sequence[int],
        *,
        may_reuse: bool = False,
    ) -> list[Progress]:
        """As :meth:`rookery.engines.engine.AbstractRunner.advance`."""
        together = [0 if i in self._alone else count for i, count in enumerate(n)]
        done = self._runner().advance(states, keys, first, together, may_reuse=may_reuse)
        for i, runner in self._alone.items():
            if n[i]:
                (done[i],) = runner.advance(
                    [states[i]], [keys[i]], first, [n[i]], may_reuse=may_reuse
                )
        return done

    def _runner(self) -> AbstractRunner:
        if self._common is None:
            self._common = self._prepared(self._algorithms, self._note)
        return self._common

    def _prepared(
        self, algorithms: Sequence[AbstractAlgorithm], note: Callable[[int, Event], None]
    ) -> AbstractRunner:
        runner = self._engine.prepare(self._program, algorithms)
        runner.follow(note)
        return runner
