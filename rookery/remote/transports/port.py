"""The port: what the remote engine needs of a transport, and nothing more."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.protocol.plan import Plan
from rookery.types import Tree


@dataclass(frozen=True)
class Failure:
    """A client that will not answer, and why: its process is gone, or the connection is."""

    reason: str


class Port(Protocol):
    """A way to the clients. It carries bytes and looks into none of them.

    Whoever implements it sees to it that the client a reply is said to come from is the one that
    sent it: by a connection, a certificate or a process of its own. A port that sees to it that
    bytes arrive as they were sent, as TLS does, says so by an attribute ``is_reliable``; arrays
    then travel without a checksum of ours.
    """

    def alive(self) -> frozenset[int]:
        """The clients that can be reached, as far as is known without asking them."""
        ...

    def exchange(
        self, step: str, messages: Iterable[tuple[int, bytes]], wait_for: float
    ) -> Iterator[tuple[int, bytes | Failure]]:
        """Send messages, and give what comes in, in the order in which it comes.

        It ends when ``wait_for`` seconds have passed, or when nothing more can come; the caller may
        leave it earlier. What comes later than that is given by a later exchange, which may have no
        messages of its own. With no time at all it sends, and gives what is there already. Several
        messages may go to one client, which answers them in order.
        """
        ...

    def close(self) -> None:
        """Let the clients go."""
        ...


class Transport(Protocol):
    """Opens ports. A field of the remote engine, so it describes and does not yet hold anything."""

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """A port to clients that are to run an algorithm.

        Args:
            program: problem, clients and clock, as the server knows them.
            algorithm: with arrays for numbers.
            state: the state before the first round, for its shapes.
            plan: the server's rehearsal; clients in the server's own process may use it too.
        """
        ...
