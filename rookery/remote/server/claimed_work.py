"""The work that clients claim, against what they were asked to do."""

import math
from collections.abc import Sequence

import numpy as np

from rookery.clients.local_client import Bounds
from rookery.clients.population import Population
from rookery.remote.protocol.plan import Call
from rookery.remote.protocol.wire import WireError

KINDS = ("gradients", "Hessian-vector products")
"""What is claimed, in this order; both count rows."""

MOST_ROWS = 2**31 - 1
"""The most rows that a client may have of a split, if the server does not know their number."""

_MOST = 1 << 53  # of either kind, where a loop has no bound


class ClaimedWork:
    """What clients with these rows may claim for steps.

    The bounds come from tracing: which samples a step evaluates, and in which loops. They coincide
    where all loops have a fixed length and the server knows how many rows a client has.

    >>> import rookery as rk
    >>> from rookery.program.algorithm import first_state, numbers_to_arrays
    >>> from rookery.remote.protocol.tracing import trace_round
    >>> zoo = rk.zoo.quadratic_losses(n_clients=3, size=2, rows=5)
    >>> population, algorithm = rk.Population.stacked(zoo.data), rk.FedAvg(lr=0.1, local_steps=2)
    >>> state = first_state(algorithm, zoo.problem, 3, zoo.start)
    >>> plan = trace_round(numbers_to_arrays(algorithm), zoo.problem, population, state)
    >>> ClaimedWork(population).bounds(1, plan.calls)
    ((10, 10), (0, 0))

    Args:
        population: what the server knows about the clients.
    """

    def __init__(self, population: Population):
        self._population, self._counts = population, np.asarray(population.counts)
        self._known: dict[tuple[int, Call], tuple[Bounds, Bounds]] = {}

    def bounds(self, client: int, calls: Sequence[Call]) -> tuple[Bounds, Bounds]:
        """The least and the most of either kind that a client can do for some steps."""
        each = [self._of_call(client, call) for call in calls]
        gradients, products = (
            (sum(one[kind][0] for one in each), sum(one[kind][1] for one in each))
            for kind in range(len(KINDS))
        )
        return gradients, products

    def check(self, client: int, calls: Sequence[Call], claimed: tuple[int, int]) -> None:
        """Raise :class:`WireError` if a client cannot have done what it claims."""
        for kind, number, (least, most) in zip(
            KINDS, claimed, self.bounds(client, calls), strict=True
        ):
            most = _MOST if math.isinf(most) else most
            if not least <= number <= most:
                asked = f"{least}" if least == most else f"{least} to {most}"
                raise WireError(f"reply rejected: it claims {number} {kind}, asked for {asked}")

    def _of_call(self, client: int, call: Call) -> tuple[Bounds, Bounds]:
        key = client, call
        if key not in self._known:
            self._known[key] = call.work(self._rows(client))
        return self._known[key]

    def _rows(self, client: int) -> dict[str, Bounds]:
        """By split, between which numbers of rows a client has."""
        counts, splits = self._counts[:, client].tolist(), self._population.splits
        return {
            split: (count, count) if count else (1, most or MOST_ROWS)
            for split, count, most in zip(splits, counts, self._population.largest, strict=True)
        }
