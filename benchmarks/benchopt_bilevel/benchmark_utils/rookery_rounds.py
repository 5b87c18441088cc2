"""rookery's algorithms on two functions of mini-batches, as a population of one client.

A function of the harness is ``f(inner_var, outer_var, start, batch_size=b)``: the mean over ``b``
samples from ``start`` on. A row of the client is such a start: one row is a batch of the harness.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import rookery as rk
from rookery.algorithms import F2SA
from rookery.algorithms.shared.schedule import AbstractSchedule
from rookery.engines.engine import Program
from rookery.program.aggregate import Mean
from rookery.program.algorithm import AbstractAlgorithm, first_state
from rookery.program.delays import Clock
from rookery.types import Tree

MOST_ROUNDS = 1 << 17
"""How many rounds the penalty of F2SA is known for."""


class OnBatch(eqx.Module):
    """A function of the harness as a loss of one row: its value on the batch that starts there."""

    function: Callable[..., jax.Array] = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    def __call__(self, x: Tree, y: Tree, row: Tree) -> jax.Array:
        """The mean over the samples of the batch."""
        return self.function(y, x, row["start"], batch_size=self.batch_size)


class OneClient:
    """An algorithm and the harness's problem; rounds are compiled once and run from any start.

    Args:
        algorithm: with a batch size of one row.
        f_inner: the inner function of the harness.
        f_outer: the outer one.
        n_inner_samples: how many samples the inner function has.
        n_outer_samples: how many the outer one has.
        batch_size: samples of a batch, or "full".
        random_state: the seed of the batches.
    """

    def __init__(
        self,
        algorithm: AbstractAlgorithm,
        f_inner: Callable[..., jax.Array],
        f_outer: Callable[..., jax.Array],
        n_inner_samples: int,
        n_outer_samples: int,
        *,
        batch_size: int | str,
        random_state: int,
    ):
        sizes = {"train": n_inner_samples, "validation": n_outer_samples}
        batches = {
            s: n if batch_size == "full" else min(int(batch_size), n) for s, n in sizes.items()
        }
        starts = {split: np.arange(0, n, batches[split]) for split, n in sizes.items()}
        n_inner = len(starts["train"])
        rows = {"start": np.concatenate(list(starts.values())).astype(np.int32)}
        parts = {
            "train": [np.arange(n_inner)],
            "validation": [np.arange(n_inner, len(rows["start"]))],
        }
        population = rk.Population.from_parts(rows, parts)
        self.algorithm = algorithm
        self.problem = rk.Bilevel(
            outer=OnBatch(f_outer, batches["validation"]),
            inner=OnBatch(f_inner, batches["train"]),
        )
        algorithm.check(self.problem, 1)
        program = Program(self.problem, population, Clock(), Mean())
        self._runner = rk.Compiled().prepare(program, [algorithm])
        self._key = jax.random.key(random_state)
        self._state, self._done = None, 0

    def start(self, inner_var: Tree, outer_var: Tree) -> None:
        """Start again from these variables."""
        first = jax.tree.map(jnp.asarray, (outer_var, inner_var))
        self._state, self._done = first_state(self.algorithm, self.problem, 1, first), 0

    def advance(self, rounds: int) -> None:
        """Run some rounds more."""
        if isinstance(self.algorithm, F2SA) and self._done + rounds > MOST_ROUNDS:
            raise ValueError(
                f"{self._done + rounds} rounds of F2SA: its penalty is known for {MOST_ROUNDS}. "
                "Stop earlier, or raise MOST_ROUNDS."
            )
        (progress,) = self._runner.advance([self._state], [self._key], self._done, [rounds])
        self._state, self._done = progress.state, self._done + len(progress.ledgers)

    @property
    def variables(self) -> tuple[Tree, Tree]:
        """The inner and the outer variable."""
        outer_var, inner_var = self.algorithm.solution(self._state)
        return inner_var, outer_var


def soba(step_size: float, outer_ratio: float) -> AbstractAlgorithm:
    """SOBA with the harness's steps: step_size / sqrt(t), and that over outer_ratio for x."""
    decay = rk.parts.PowerDecay
    outer_lr, inner_lr = decay(step_size / outer_ratio, 0.5), decay(step_size, 0.5)
    return rk.SOBA(outer_lr=outer_lr, inner_lr=inner_lr, batch_size=1)


def stocbio(
    step_size: float, outer_ratio: float, n_inner_steps: int, n_shia_steps: int
) -> AbstractAlgorithm:
    """StocBiO with the harness's constant steps, the same for y and for the Neumann series."""
    return rk.StocBiO(
        outer_lr=step_size / outer_ratio,
        inner_lr=step_size,
        inner_rounds=n_inner_steps,
        terms=n_shia_steps,
        adjoint_lr=step_size,
        batch_size=1,
    )


def f2sa(
    step_size: float, outer_ratio: float, n_inner_steps: int, lmbda0: float, delta_lmbda: float
) -> AbstractAlgorithm:
    """F2SA with the harness's steps, and its penalty that grows by delta_lmbda / t^(1/7)."""
    t = np.arange(1, MOST_ROUNDS, dtype=float)
    grown = np.concatenate([[0.0], np.cumsum(delta_lmbda * t ** (-1 / 7))])
    penalty = Listed(jnp.asarray(lmbda0 + grown))
    # rookery divides the inner objective of the penalised variable by the penalty
    first = Times(rk.parts.PowerDecay(step_size, 5 / 7), penalty)
    return F2SA(
        outer_lr=rk.parts.PowerDecay(step_size / outer_ratio, 4 / 7),
        inner_lr=(first, rk.parts.PowerDecay(step_size, 4 / 7)),
        inner_rounds=n_inner_steps,
        penalty=rk.parts.PenaltyView(sigma=penalty, symmetric=False),
        batch_size=1,
    )


class Listed(AbstractSchedule):
    """A number for every round, from a list."""

    values: jax.Array

    def __call__(self, round: int | jax.Array) -> jax.Array:
        """The number of a round."""
        return self.values[round]


class Times(AbstractSchedule):
    """The product of two schedules."""

    first: AbstractSchedule
    second: AbstractSchedule

    def __call__(self, round: int | jax.Array) -> jax.Array:
        """The product in a round."""
        return self.first(round) * self.second(round)
