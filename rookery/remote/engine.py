"""The remote engine: runs a program by messages to its clients."""

import math
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
from rookery.program.aggregate import Mean, robust_rule
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.federation import only_sums
from rookery.program.ledger import Ledger
from rookery.program.polling import all_finite, later
from rookery.remote.protocol import handshake, masks
from rookery.remote.protocol.plan import Plan
from rookery.remote.protocol.secure import SecureAggregation
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.server import memory_sync
from rookery.remote.server.claimed_work import ClaimedWork
from rookery.remote.server.federation import RemoteFederation
from rookery.remote.server.policy import Policy
from rookery.remote.server.requests import MemoryLost, TooFewReplies
from rookery.remote.server.secure_sums import SecureSums
from rookery.remote.server.session import Session
from rookery.remote.transports.in_process import InProcess
from rookery.remote.transports.port import Transport
from rookery.types import Key, Tree

AGGREGATE = "aggregate"
"""What events call the server's own step, in place of a client step."""

UNPROTECTED = (
    "nothing limits what a client may send: one that sends numbers far too large decides the run. "
    "Use aggregate=rk.aggregate.Median() or another robust rule, or Policy(largest_ratio=...)."
)
"""What a run without any protection says when it begins."""

HIDDEN = (
    "secure aggregation hides single replies, so the server cannot tell which are wrong or too "
    "large. Policies of the sites can bound what leaves them."
)
"""What a run with secure aggregation says when it begins."""


class Remote(AbstractEngine):
    """Runs a program by messages: the server computes here, client steps run where the data is.

    Trajectories and ledgers equal those of the other engines. The runs of a sweep go one after
    another, so use ``batch=1``.

    >>> Remote(policy=Policy(wait_for=30.0, min_replies=0.8)).in_real_time
    False

    Args:
        transport: how clients are reached; threads of this process by default.
        policy: deadlines, retries, and how many replies are enough.
        in_real_time: whether asynchronous programs take results in the order in which they arrive,
            and the ledger counts real seconds. Otherwise both follow the clock's simulation, and a
            run is reproducible.
        secure: hides single replies from the server, which then learns means and sums alone. Means
            are rounded to fixed-point numbers.
    """

    transport: Transport = eqx.field(default_factory=InProcess)
    policy: Policy = eqx.field(default_factory=Policy)
    in_real_time: bool = False
    secure: SecureAggregation | None = None

    def prepare(self, program: Program, algorithms: Sequence[AbstractAlgorithm]) -> AbstractRunner:
        """Prepare a run; the handshake with the clients precedes the first round."""
        if len(algorithms) > 1:
            raise ValueError(
                f"the remote engine runs one algorithm at a time, got {len(algorithms)} side by "
                "side. Use batch=1."
            )
        if self.secure is not None:
            self._check_secure(program)
        if program.clock.compute is not None and not self.in_real_time:
            program.population.check_rows("the simulated time of the clients' work (Clock.compute)")
        return RemoteRunner(program, algorithms[0], self)

    def _check_secure(self, program: Program) -> None:
        masks.require()
        if type(program.aggregate) is not Mean:
            raise only_sums(
                f"aggregate={type(program.aggregate).__name__}()",
                "a rule other than the mean compares single replies",
            )
        if not math.isinf(self.policy.largest_norm):
            raise only_sums(
                f"Policy.largest_norm={self.policy.largest_norm:g}",
                "the server cannot measure the norm of a masked reply",
            )


class RemoteRunner(AbstractRunner):
    """One run."""

    def __init__(self, program: Program, algorithm: AbstractAlgorithm, engine: Remote):
        self._program, self._engine = program, engine
        self._algorithm = numbers_to_arrays(algorithm)
        self._opened: tuple[Plan, Session] | None = None
        self._last: Tree = None
        self._on_event: Callable[[Event], None] = lambda event: None

    @property
    def session(self) -> Session:
        """The session with the clients, once the first round has begun."""
        return self._open_session()[1]

    def federation(self, round: int) -> RemoteFederation:
        """The federation of a round; the values that clients have of another are dropped."""
        plan, session = self._open_session()
        session.begin_round(round)
        return RemoteFederation(
            self._program,
            session,
            plan,
            in_real_time=self._engine.in_real_time,
            secure_sums=None if plan.secure is None else SecureSums(session, plan.secure),
        )

    def follow(self, note: Callable[[int, Event], None]) -> None:
        """Call ``note`` with every event as it happens."""
        self._on_event = partial(note, 0)

    def close(self) -> None:
        """Close the connections to the clients."""
        if self._opened is not None:
            self._opened[1].port.close()
            self._opened, self._last = None, None

    def advance(self, states, keys, first, n, *, may_reuse=False) -> list[Progress]:
        """Run one round after another; collects the clients' memories at the end."""
        (state,), (key,), (count,) = states, keys, n
        if self._opened is None:
            self._opened = self._open(state, first)
            self._handshake()
        session = self.session
        if state is not self._last:
            memory_sync.restore(session.clients, state)
            session.discard_sent()
        ledgers: list[Ledger] = []
        cohorts: list[tuple[tuple[int, ...], ...]] = []
        stopped: TooFewReplies | None = None
        remote = memory_sync.to_remote(state)
        try:
            for round in range(first, first + count):
                try:
                    remote, spent, met = self._round(round, remote, key)
                except TooFewReplies as too_few:
                    stopped = too_few
                    break
                ledgers.append(spent)
                cohorts.append(met)
                on_server = memory_sync.replace_memories(remote, lambda *_: None)
                if not all_finite(on_server, self._program.aggregate):
                    break
            self._last = memory_sync.collect(session, remote)
        except (TooFewReplies, MemoryLost) as error:
            # what clients kept in these rounds is lost, so the run cannot continue from here
            self._last = None
            raise Stopped(_advice(error, first), []) from error
        is_finite = all_finite(self._last, self._program.aggregate)
        progress = [Progress(self._last, ledgers, is_finite, cohorts)]
        if stopped is not None:
            raise Stopped(_advice(stopped, first + len(ledgers)), progress) from stopped
        return progress

    def _round(
        self, round: int, state: Tree, key: Key
    ) -> tuple[Tree, Ledger, tuple[tuple[int, ...], ...]]:
        """The state after a round, what it cost, and the clients of its exchanges."""
        fed = self.federation(round)
        round_key = jax.random.fold_in(key, round)
        state = self._algorithm.round(fed, self._program.problem, state, round_key)
        state = later(state, jnp.asarray(fed.costs.now, float))
        state = memory_sync.end_round(self.session, state, fed.costs.work)
        return state, fed.costs.ledger, tuple(fed.cohorts)

    def _open(self, state: Tree, first: int) -> tuple[Plan, Session]:
        problem, population = self._program.problem, self._program.population
        rule, secure = robust_rule(self._program.aggregate), self._engine.secure
        plan = trace_round(
            self._algorithm, problem, population, state, self._program.aggregate, secure
        )
        names = [population.client_name(client) for client in range(population.n_clients)]
        session = Session(
            self._engine.transport.open(self._program, self._algorithm, state, plan),
            self._engine.policy,
            handshake.configuration(problem, self._algorithm, population.n_clients, plan),
            names,
            ClaimedWork(population),
            on_event=lambda event: self._on_event(event),
            round=first,
            is_robust=rule is not None,
        )
        policy = self._engine.policy
        if rule is None and math.isinf(policy.largest_norm) and math.isinf(policy.largest_ratio):
            session.report(AGGREGATE, None, UNPROTECTED)
        if secure is not None:
            session.report(AGGREGATE, None, HIDDEN)
        return plan, session

    def _handshake(self) -> None:
        try:
            self.session.handshake(range(self._program.population.n_clients))
        except BaseException:
            self.close()
            raise

    def _open_session(self) -> tuple[Plan, Session]:
        if self._opened is None:
            raise ValueError("the session is not open: call advance first.")
        return self._opened


def _advice(error: Exception, round: int) -> str:
    return (
        f"{error} The run has stopped. If it has a directory, the same command resumes it from the "
        f"last checkpoint, at round {round} or before."
    )
