"""ComposedSGD: the gradient of the whole composition on one batch, by steps of the server.

The "centralised MSA" of FedMSA's figure 2 (arXiv:2306.01648): SCGD with b = 1 and one cohort and
one batch throughout.

    code        meaning
    x           the variable
    outer_lr    its step rule

Cost of a round: 2 N + 1 exchanges for N + 1 layers. A function of a batch's mean is not the mean of
the function, so it is biased unless the batch is everything. The released program of FedMSA divides
this gradient by the number of rows in the batch, which makes the rival slower by as much. Here it
is undivided; divide outer_lr to get the other.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery.algorithms.shared.chain import backward, forward
from rookery.algorithms.shared.composed import AbstractCompositional, TrackedState
from rookery.algorithms.shared.step_rule import (
    StepRule,
    check_step_rule,
    first_opt,
    move,
    step_rule,
)
from rookery.problem.composition import Composition
from rookery.problem.constraints import projected
from rookery.program.algorithm import check_kind
from rookery.program.federation import AbstractFederation
from rookery.types import Key, Tree


class ComposedSGD(AbstractCompositional):
    """Steps along the gradient of the whole composition on one batch, which is not divided.

    Args:
        outer_lr: step rule of x.

    >>> ComposedSGD(outer_lr=0.05, clients=10, batch_size=32).name
    'ComposedSGD'
    """

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule)

    def __check_init__(self):
        check_step_rule("outer_lr", self.outer_lr)

    def check(self, problem: Composition, n_clients: int) -> None:
        """Raise unless the problem is a composition."""
        check_kind(self, problem, Composition)
        self.clients.check(n_clients)

    def init(self, problem: Composition, x: Tree) -> TrackedState:
        """x as given; no value is followed."""
        return TrackedState(x, (), first_opt(self.outer_lr, x))

    def round(
        self, fed: AbstractFederation, problem: Composition, state: TrackedState, key: Key
    ) -> TrackedState:
        """One cohort and one batch from the first layer to the last and back."""
        who, sample_key = jax.random.split(key)
        N, turn = len(problem.layers) - 1, (fed.sample(self.clients, who), sample_key)
        z = forward(fed, problem, [turn] * N, state.x, self.batch_size)
        g = backward(fed, problem, [turn] * (N + 1), z, self.batch_size)[0]
        x, opt = move(self.outer_lr, g, state.opt, state.x, fed.round)
        return TrackedState(projected(problem, "x", x), (), opt)
