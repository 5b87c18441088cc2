"""Batching of clients in one process: equal calls go through one vmap."""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from rookery.clients.population import Population
from rookery.remote.protocol.plan import Call, Inputs, Result
from rookery.remote.protocol.wire import Parts


class PendingCall(NamedTuple):
    """A call whose result a client waits for."""

    call: Call
    population: Population
    inputs: Inputs


Answering = Generator[PendingCall, Result, Parts]
"""A client at work on a reply: yields calls, receives their results, returns the reply."""


def finish(clients: Sequence[Answering], max_batch: int | None = None) -> list[Parts]:
    """The replies of clients; runs all their calls.

    Args:
        clients: each at work on one reply. Clients are batched if they share a population.
        max_batch: a batch is not padded beyond this many clients; None means no limit.
    """
    replies: dict[int, Parts] = {}
    results: dict[int, Result | Exception | None] = dict.fromkeys(range(len(clients)))
    while results:
        calls: dict[int, PendingCall] = {}
        for i, result in results.items():
            try:
                if result is None:
                    calls[i] = next(clients[i])
                elif isinstance(result, Exception):
                    calls[i] = clients[i].throw(result)
                else:
                    calls[i] = clients[i].send(result)
            except StopIteration as end:
                replies[i] = end.value
        batches: dict[tuple, list[int]] = {}
        for i, (call, population, inputs) in calls.items():
            kind = call.number, call.most_iterations, id(population), len(inputs.folds)
            batches.setdefault(kind, []).append(i)
        results = {
            i: result
            for batch in batches.values()
            for i, result in zip(batch, _run([calls[i] for i in batch], max_batch), strict=True)
        }
    return [replies[i] for i in range(len(clients))]


def _run(batch: Sequence[PendingCall], max_batch: int | None) -> list[Result | Exception]:
    """The result of one call for each client of a batch."""
    call, population, _ = batch[0]
    inputs = [pending.inputs for pending in batch]
    try:
        results = call.run(population, inputs + inputs[-1:] * _padding(len(inputs), max_batch))
    except Exception as error:  # the client reports it in its reply
        if len(batch) > 1:  # run one by one to find the client that raised it
            return [_run([pending], max_batch)[0] for pending in batch]
        return [error]
    return [*results[: len(batch)]]


def _padding(n: int, max_batch: int | None) -> int:
    """Padding up to the next power of two, so that varying batch sizes share few programs.

    >>> [_padding(n, None) for n in (1, 2, 3, 5)]
    [0, 0, 1, 3]
    """
    full = 1 << (n - 1).bit_length()
    return max(min(full, max_batch or full) - n, 0)
