"""Clients of one process, computed together: calls that they share go through one vmap."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from rookery.clients.population import Population
from rookery.remote.protocol.plan import Call, Inputs


class PendingCall(NamedTuple):
    """A call that a client has to have run before it can go on."""

    call: Call
    population: Population
    inputs: Inputs


Result = tuple[list[Any], Any]
"""The leaves of a call's reply, and the work."""

Answering = Generator[PendingCall, Result, bytes]
"""A client that makes a reply: it hands out calls, takes in their results, and has it at last."""


def finish(clients: Sequence[Answering], most: int | None = None) -> list[bytes]:
    """The replies, once all calls are run.

    Args:
        clients: at work, each on one reply. Those to be computed together share a population.
        most: a vmap is not filled up beyond so many clients; None is any number.
    """
    replies: dict[int, bytes] = {}
    results: dict[int, Any] = dict.fromkeys(range(len(clients)))
    while results:
        turns: dict[int, PendingCall] = {}
        for i, result in results.items():
            try:
                if isinstance(result, Exception):
                    turns[i] = clients[i].throw(result)
                else:
                    turns[i] = clients[i].send(result)
            except StopIteration as end:
                replies[i] = end.value
        alike: dict[Any, list[int]] = {}
        for i, (call, population, inputs) in turns.items():
            alike.setdefault((call.number, id(population), len(inputs.folds)), []).append(i)
        results = {
            i: result
            for some in alike.values()
            for i, result in zip(some, _results([turns[i] for i in some], most), strict=True)
        }
    return [replies[i] for i in range(len(clients))]


def _results(turns: Sequence[PendingCall], most: int | None) -> list[Result | Exception]:
    """What a call gives each client."""
    call, population, _ = turns[0]
    inputs = [turn.inputs for turn in turns]
    try:
        results = call.run(population, inputs + inputs[-1:] * _spare(len(inputs), most))
    except Exception as error:  # a client says so in its reply
        if len(turns) > 1:  # whose it was is seen when they take turns
            return [_results([turn], most)[0] for turn in turns]
        return [error]
    return [*results[: len(turns)]]


def _spare(n: int, most: int | None) -> int:
    """Clients to compute in vain, so that numbers of them that vary compile few programs."""
    full = 1 << (n - 1).bit_length()
    return max(min(full, most or full) - n, 0)
