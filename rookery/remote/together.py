"""Clients of one process, computed together: calls that they share go through one vmap."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rookery.clients.population import Population
from rookery.remote.plan import Call, Inputs


class Turn(NamedTuple):
    """A call that a client has to have run before it can go on."""

    call: Call
    population: Population
    inputs: Inputs


Result = tuple[list[Any], Any]
"""The leaves of a call's reply, and the work."""

Answering = Generator[Turn, Result, bytes]
"""A client that makes a reply: it hands out calls, takes in their results, and has it at last."""


def finish(clients: Sequence[Answering], at_once: int | None = None) -> list[bytes]:
    """The replies, once all calls are run.

    Args:
        clients: at work, each on one reply. Those to be computed together share a population.
        at_once: how many of them go through one vmap, at most; None is any number.
    """
    replies: dict[int, bytes] = {}
    results: dict[int, Any] = dict.fromkeys(range(len(clients)))
    while results:
        turns: dict[int, Turn] = {}
        for i, result in results.items():
            try:
                if isinstance(result, Exception):
                    turns[i] = clients[i].throw(result)
                else:
                    turns[i] = clients[i].send(result)
            except StopIteration as end:
                replies[i] = end.value
        results = dict(_results(turns, at_once))
    return [replies[i] for i in range(len(clients))]


def _results(
    turns: Mapping[int, Turn], at_once: int | None
) -> Iterable[tuple[int, Result | Exception]]:
    """What calls give; what a call raises is the result of all who share it."""
    alike: dict[Any, list[int]] = {}
    for i, (call, population, inputs) in turns.items():
        alike.setdefault((call.number, id(population), len(inputs.folds)), []).append(i)
    for some in alike.values():
        size = at_once or len(some)
        for chunk in (some[k : k + size] for k in range(0, len(some), size)):
            call, population, _ = turns[chunk[0]]
            inputs = [turns[i].inputs for i in chunk]
            try:
                results = call.run(population, inputs + inputs[-1:] * _spare(len(chunk), at_once))
            except Exception as error:  # a client says so in its reply
                results = [error] * len(chunk)
            yield from zip(chunk, results, strict=False)


def _spare(n: int, at_once: int | None) -> int:
    """Clients to compute in vain, so that numbers of them that vary compile few programs."""
    full = 1 << (n - 1).bit_length()
    return min(full, at_once or full) - n
