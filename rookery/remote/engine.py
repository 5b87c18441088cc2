"""The remote engine: a program whose clients are elsewhere."""

from collections.abc import Callable, Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.engines.engine import (
    AbstractEngine,
    AbstractRunner,
    Event,
    Program,
    Progress,
    Stopped,
)
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.ledger import Ledger
from rookery.program.polling import all_finite, later
from rookery.remote.protocol.handshake import agreement
from rookery.remote.protocol.plan import Plan
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.server import memory_sync
from rookery.remote.server.federation import RemoteFederation
from rookery.remote.server.message_builder import Holdings
from rookery.remote.server.policy import Policy
from rookery.remote.server.requests import MemoryLost, TooFewReplies
from rookery.remote.server.session import Session
from rookery.remote.transports.in_process import InProcess
from rookery.remote.transports.port import Transport
from rookery.types import Key, Tree


class Remote(AbstractEngine):
    """Runs a program by messages: the server computes here, the steps run where the data is.

    Numbers and ledgers are those of the other engines. Runs of a sweep go one after another, so
    ``batch=1`` is what it needs.

    Args:
        transport: how clients are reached; threads of this process if not given.
        policy: what to do about clients that do not answer.
        in_real_time: whether asynchronous programs take results in the order in which they really
            come, and the ledger counts real seconds. If not, both are those of the clock's
            simulation, and a run can be done again.
    """

    transport: Transport = eqx.field(default_factory=InProcess)
    policy: Policy = eqx.field(default_factory=Policy)
    in_real_time: bool = False

    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Make ready; clients are greeted before the first round."""
        if len(algorithms) > 1:
            raise ValueError(
                f"the remote engine runs one job at a time, got {len(algorithms)} side by side. "
                "Use batch=1."
            )
        return RemoteRunner(program, algorithms[0], self)


class RemoteRunner(AbstractRunner):
    """One run."""

    def __init__(self, program: Program, algorithm: AbstractAlgorithm, engine: Remote):
        self._program = program
        self._algorithm = numbers_to_arrays(algorithm)
        self._transport, self._policy = engine.transport, engine.policy
        self._in_real_time = engine.in_real_time
        self._holdings = Holdings()
        self._opened: tuple[Plan, Session] | None = None
        self._last: Tree = None
        self._note: Callable[[Event], None] = lambda event: None

    @property
    def session(self) -> Session:
        """The exchanges with the clients, once there have been any."""
        if self._opened is None:
            raise ValueError("no client has been spoken to yet.")
        return self._opened[1]

    def follow(self, note: Callable[[int, Event], None]) -> None:
        """Call ``note`` as soon as something befalls a client."""
        self._note = partial(note, 0)

    def close(self) -> None:
        """Let the clients go."""
        if self._opened is not None:
            self._opened[1].port.close()
            self._opened = None

    def advance(
        self, states: Sequence[Tree], keys: Sequence[Key], first: int, n: Sequence[int]
    ) -> list[Progress]:
        """Round after round; memories come back at the end, to be checkpointed."""
        (state,), (key,), (count,) = states, keys, n
        plan, session = self._open(state, first)
        if state is not self._last:
            memory_sync.hand_over(self._holdings, state)
            self._holdings.errands.clear()
            session.forget_jobs()
        ledgers: list[Ledger] = []
        stopped: TooFewReplies | None = None
        remote = memory_sync.with_handles(state)
        try:
            for round in range(first, first + count):
                try:
                    remote, ledger = self._round(plan, session, round, remote, key)
                except TooFewReplies as few:
                    stopped = few
                    break
                ledgers.append(ledger)
                known = memory_sync.replace_memories(remote, lambda *_: None)
                if not bool(all_finite(known)):
                    break
            self._last = memory_sync.collect(session, self._holdings, session.round, remote)
        except (TooFewReplies, MemoryLost) as lost:
            # what clients have kept in these rounds is gone, so nobody can go on from there
            self._last = None
            raise Stopped(_advice(lost, first), []) from lost
        progress = [Progress(self._last, ledgers, bool(all_finite(self._last)))]
        if stopped is not None:
            raise Stopped(_advice(stopped, first + len(ledgers)), progress) from stopped
        return progress

    def _round(
        self, plan: Plan, session: Session, round: int, state: Tree, key: Key
    ) -> tuple[Tree, Ledger]:
        session.round = round
        self._holdings.values.clear()
        fed = RemoteFederation(
            self._program, round, session, plan, self._holdings, self._in_real_time
        )
        round_key = jax.random.fold_in(key, round)
        state = self._algorithm.round(fed, self._program.problem, state, round_key)
        state = later(state, jnp.asarray(fed.bills.now, float))
        state = memory_sync.settle(session, self._holdings, round, state, fed.bills.work)
        return state, fed.bills.ledger

    def _open(self, state: Tree, first: int) -> tuple[Plan, Session]:
        if self._opened is None:
            problem, people = self._program.problem, self._program.population
            plan = trace_round(self._algorithm, problem, people, state)
            agreed = agreement(problem, self._algorithm, people.n_clients, plan)
            port = self._transport.open(self._program, self._algorithm, state, plan)
            session = Session(port, self._policy, agreed)
            session.round = first
            session.note = lambda event: self._note(event)
            session.forget = self._forget
            self._opened = plan, session
            try:
                session.greet(range(people.n_clients))
            except BaseException:
                self.close()
                raise
        return self._opened

    def _forget(self, client: int, everything: bool) -> None:
        holdings = self._holdings
        holdings.values.pop(client, None)
        holdings.carried.pop(client, None)
        if not everything:
            return
        if client in holdings.unseen:
            self.session.say("memory", client, "its memory of the last rounds is lost")
            n_clients = self._program.population.n_clients
            if self._policy.needed(n_clients) == n_clients:
                raise MemoryLost(
                    f"client {client} was started anew and has lost what it kept in the last "
                    "rounds."
                )
        holdings.remembering.discard(client)
        holdings.uncommitted.pop(client, None)
        holdings.unseen.discard(client)


def _advice(error: Exception, round: int) -> str:
    return (
        f"{error} The run has stopped. If it has a directory, the same command goes on from the "
        f"last checkpoint, at round {round} or before."
    )
