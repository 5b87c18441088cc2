"""The port: all that the remote engine needs of a transport."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from rookery.engines.engine import Program
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.protocol.plan import Plan
from rookery.remote.protocol.wire import Parts
from rookery.types import Tree

Data = bytes | Parts
"""A reply: one flat buffer, or its parts."""


@dataclass(frozen=True)
class Failure:
    """Why a client will not reply: its process or its connection is gone.

    >>> Failure("the connection was closed").reason
    'the connection was closed'
    """

    reason: str


class Port(Protocol):
    """A connection to the clients. It carries bytes and does not look into them.

    An implementation must guarantee that a reply comes from the client it is attributed to: by a
    connection, a certificate or a process per client.

    A port may wrap another one. This one counts exchanges:

    >>> class CountingPort:
    ...     def __init__(self, port):
    ...         self.port, self.exchanges = port, 0
    ...         self.is_reliable, self.alive, self.close = port.is_reliable, port.alive, port.close
    ...     def exchange(self, step, messages, wait_for):
    ...         self.exchanges += 1
    ...         return self.port.exchange(step, messages, wait_for)
    >>> class Silent:
    ...     is_reliable = True
    ...     def alive(self): return frozenset()
    ...     def exchange(self, step, messages, wait_for): return iter(())
    ...     def close(self): ...
    >>> port: Port = CountingPort(Silent())
    >>> list(port.exchange("gradient", [], wait_for=0)), port.exchanges
    ([], 1)
    """

    @property
    def is_reliable(self) -> bool:
        """Whether bytes arrive unchanged, as over TLS; arrays are then sent without a checksum."""
        ...

    def alive(self) -> frozenset[int]:
        """The clients believed to be reachable, without asking them."""
        ...

    def exchange(
        self, step: str, messages: Iterable[tuple[int, Parts]], wait_for: float
    ) -> Iterator[tuple[int, Data | Failure]]:
        """Send messages and yield what arrives, in order of arrival.

        Ends after ``wait_for`` seconds, or when nothing more can arrive; the caller may stop
        earlier. Later arrivals are yielded by a later exchange, which may have no messages of its
        own. With ``wait_for=0`` it sends, and yields what has already arrived. Several messages may
        go to one client, which answers them in order.

        A message comes in parts; joined they are one flat buffer. A port that can carry parts need
        not copy them, and sends a part that several messages have in common only once.
        """
        ...

    def close(self) -> None:
        """Close the connections and release the clients."""
        ...


class Transport(Protocol):
    """Opens ports. It is a field of the remote engine: a description that holds no resources.

    A transport of your own, here one that announces its clients:

    >>> import rookery as rk
    >>> from rookery.remote import InProcess, Remote
    >>> class Announced:
    ...     def open(self, program, algorithm, state, plan):
    ...         print(program.population.n_clients, "clients for", algorithm.name)
    ...         return InProcess().open(program, algorithm, state, plan)
    >>> zoo = rk.zoo.quadratic_losses(n_clients=2)
    >>> clients, engine = rk.Population.stacked(zoo.data), Remote(Announced())
    >>> result = rk.run(
    ...     rk.FedAvg(lr=0.1), zoo.problem, clients, zoo.start, rounds=1, engine=engine
    ... )
    2 clients for FedAvg
    """

    def open(self, program: Program, algorithm: AbstractAlgorithm, state: Tree, plan: Plan) -> Port:
        """A port to the clients of a run.

        Args:
            program: problem, population and clock, as the server knows them.
            algorithm: the algorithm, with its numbers as arrays.
            state: the state before the first round, for its shapes.
            plan: the server's plan; clients in the server's own process may share it.
        """
        ...
