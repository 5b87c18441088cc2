"""ComposedSGD: the gradient of the whole composition on one batch, by steps of the server.

The "centralised MSA" of FedMSA's figure 2 (arXiv:2306.01648): SCGD with b = 1 and one cohort and
one batch throughout.

    code        meaning
    x           the variable
    outer_lr    its step size

Cost of a round: 2 N + 1 exchanges for N + 1 layers. A function of a batch's mean is not the mean of
the function, so it is biased unless the batch is everything. The released program of FedMSA divides
this gradient by the number of rows in the batch, which makes the rival slower by as much. Here it
is undivided; divide outer_lr to get the other.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import tree
from rookery.algorithms.shared.chain import backward, forward
from rookery.algorithms.shared.composed import AbstractCompositional, TrackedState, check_step_sizes
from rookery.algorithms.shared.local import number
from rookery.algorithms.shared.schedule import Rate, size_at
from rookery.problem.composition import Composition
from rookery.program.algorithm import check_kind
from rookery.program.federation import AbstractFederation
from rookery.types import Key, Tree


class ComposedSGD(AbstractCompositional):
    """Steps along the gradient of the whole composition on one batch, which is not divided.

    Args:
        outer_lr: of x, a number or a schedule.
    """

    _: KW_ONLY
    outer_lr: Rate = eqx.field(converter=number)

    def __check_init__(self):
        check_step_sizes(self)

    def check(self, problem: Composition, n_clients: int) -> None:
        """Raise unless the problem is a composition."""
        check_kind(self, problem, Composition)
        self.clients.check(n_clients)

    def init(self, problem: Composition, x: Tree) -> TrackedState:
        """x as given; no value is followed."""
        return TrackedState(x, ())

    def round(
        self, fed: AbstractFederation, problem: Composition, state: TrackedState, key: Key
    ) -> TrackedState:
        """One cohort and one batch from the first layer to the last and back."""
        who, sample_key = jax.random.split(key)
        N, turn = len(problem.layers) - 1, (fed.sample(self.clients, who), sample_key)
        z = forward(fed, problem, [turn] * N, state.x, self.batch_size)
        g = backward(fed, problem, [turn] * (N + 1), z, self.batch_size)[0]
        return TrackedState(tree.axpy(-size_at(self.outer_lr, fed.round), g, state.x), ())
