"""The client's side: it answers messages, and keeps its data and its memory."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rookery.clients.population import Population
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.remote.client import batching
from rookery.remote.client.batching import Answering, PendingCall
from rookery.remote.protocol import handshake, instructions, wire
from rookery.remote.protocol.plan import Call, Inputs, Plan, spec
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.protocol.wire import Kind, Message, WireError
from rookery.types import Tree

_KEPT = 8  # replies that are sent again when their request comes again


VALUES, ALL = 1, 2
"""What a client may have lost."""


class _Lost(LookupError):
    """The server speaks of something that this client does not have, or has no longer."""

    def __init__(self, what: str, lost: int):
        super().__init__(what)
        self.lost = lost


class Worker:
    """One client. It needs no network: whoever carries the messages calls :meth:`answer`.

    Args:
        id: the client's number.
        problem: what is solved.
        algorithm: the server's program, of which a client runs the steps.
        population: with this client's rows; see :meth:`Population.only`. Clients that share one
            that is on the device already can be computed together.
        state: the algorithm's state before the first round, or its shapes.
        plan: of a rehearsal that was made before, to save the time for another.
        limits: on the sizes of messages.
        is_checked: whether replies carry a checksum of their arrays; see :class:`~port.Port`.
    """

    def __init__(
        self,
        id: int,
        problem: Any,
        algorithm: AbstractAlgorithm,
        population: Population,
        state: Tree,
        plan: Plan | None = None,
        limits: wire.Limits = wire.LIMITS,
        is_checked: bool = True,
    ):
        algorithm = numbers_to_arrays(algorithm)
        plan = plan if plan is not None else trace_round(algorithm, problem, population, state)
        self.id = id
        self._plan = plan
        is_here = all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(population))
        self._population = population if is_here else jax.device_put(population)
        self._limits, self._is_checked = limits, is_checked
        self._agreement = handshake.agreement(problem, algorithm, population.n_clients, plan)
        self._has_agreed = False
        self._latest = 0  # number of the newest exchange
        self._round = -1
        self._values: dict[int, list[Any]] = {}
        self._memory: dict[int, tuple[int, list[Any]]] = {}  # memory: stamp, leaves
        self._answered: dict[tuple[int, int], bytes] = {}

    def answer(self, data: bytes) -> bytes:
        """The reply to a message; whatever is wrong with it is said in the reply."""
        (reply,) = batching.finish([self.answering(data)])
        return reply

    def answering(self, data: bytes) -> Answering:
        """The same, by and by: calls are handed out to be run, and their results taken in.

        What the message brings is taken in before the first call, so a second message to the same
        client in the same exchange can be begun before this one is answered.
        """
        try:
            message = wire.decode(data, self._limits)
        except WireError as error:
            return self._failure(Message(Kind.FAILURE, "", self.id), f"malformed message: {error}")
        if message.client != self.id:
            return self._failure(message, f"this is client {self.id}, not {message.client}")
        seen = (message.exchange, message.slot)
        if seen in self._answered:
            return self._answered[seen]  # asked again: not done again
        if message.exchange < self._latest:
            return self._failure(message, "this request is older than one that was answered")
        try:
            reply = yield from self._reply(message)
        except _Lost as error:
            return self._failure(message, f"the client has no {error}", error.lost)
        except Exception as error:  # a client says what went wrong, and lives
            return self._failure(message, f"{type(error).__name__}: {error}")
        self._answered[seen] = reply
        self._latest = message.exchange
        for old in list(self._answered)[:-_KEPT]:
            del self._answered[old]
        return reply

    def _reply(self, message: Message) -> Answering:
        if message.kind is Kind.HELLO:
            theirs = handshake.read(message.arrays)
            self._has_agreed = not handshake.differences(theirs, self._agreement)
            self._values, self._memory, self._round = {}, {}, -1
            return self._message(Kind.HELLO, message, handshake.write(self._agreement))
        if message.kind is not Kind.RUN:
            raise WireError(f"a client is not sent messages of kind {message.kind.name}")
        if not self._has_agreed:
            raise _Lost("agreement with this server", ALL)
        wanted = instructions.read(message.arrays)
        self._remember(wanted.commit)
        if wanted.round != self._round:
            self._round, self._values = wanted.round, {}
        self._store(message.arrays, wanted.brought)
        self._remember(wanted.remember)
        names = [call.name for call in map(self._call, wanted.tasks)]
        if names and message.name not in names:
            raise WireError(f"the message names {message.name} and asks for {names}")
        work = np.zeros(2, np.uint64)
        for i, task in enumerate(wanted.tasks):
            self._values[task.token], done = yield self._turn(i, task, message)
            work += np.asarray(done).astype(np.uint64)
        given = {f"give/{i}": self._leaf(ref) for i, ref in enumerate(wanted.give)}
        return self._message(Kind.REPLY, message, {"work": work, **given})

    def _turn(self, i: int, task: instructions.Instruction, message: Message) -> PendingCall:
        call = self._call(task)
        values = [self._leaf(ref) for ref in task.values]
        if (got := [spec(v) for v in values]) != call.wanted:
            raise WireError(f"{call.name} takes {call.wanted}, got {got}")
        numbers = [message.arrays.get(f"set/{i}/{j}") for j in range(len(call.travelling))]
        for number, wanted in zip(numbers, call.travelling, strict=True):
            if number is None or (str(number.dtype), number.shape) != (wanted.dtype, wanted.shape):
                raise WireError(f"{call.name} needs settings {call.travelling}")
        key = message.arrays.get(f"key/{i}")
        if (key is not None) != call.has_key:
            raise WireError(f"{call.name} has a key on one side and none on the other")
        if key is not None and not (isinstance(key, wire.Keys) and key.shape == ()):
            raise WireError(f"{call.name} takes one key, got {spec(key)}")
        folds = (self.id,) if task.occurrence < 0 else (self.id, task.occurrence)
        if key is None or task.occurrence == instructions.OWN_KEY:
            folds = ()
        own = tuple(np.uint32(n) for n in folds)
        return PendingCall(
            call, self._population, Inputs(np.int32(self.id), key, own, values, numbers)
        )

    def _call(self, task: instructions.Instruction) -> Call:
        if not 0 <= task.call < len(self._plan.calls):
            raise WireError(f"no such step: number {task.call}")
        return self._plan.calls[task.call]

    def _store(self, arrays: Mapping[str, Any], brought: list[int]) -> None:
        """Values come as ``value/place/leaf``, rows of memories as ``row/place/leaf``."""
        if any(token < 0 for token in brought):
            raise WireError("a value has a number below 0, as only memories have")
        new: list[list[Any]] = [[] for _ in brought]
        for path, array in arrays.items():
            kind, _, rest = path.partition("/")
            if kind not in ("value", "row"):
                continue
            place, _, leaf = rest.partition("/")
            if not (place.isdecimal() and len(place) < 20 and int(place) < len(new)):
                raise WireError(f"{path!r} is not one of the {len(new)} values")
            if leaf != str(len(new[int(place)])):
                raise WireError(f"{path!r} comes out of order")
            new[int(place)].append(array)
        self._values.update(zip(brought, new, strict=True))

    def _remember(self, changes: list[tuple[int, int, list[instructions.Ref]]]) -> None:
        for memory, stamp, refs in changes:
            if stamp > self._memory.get(memory, (-1,))[0]:
                # a row of clients that were computed together would keep the others' rows as well
                leaves = [jax.tree.map(np.array, self._leaf(ref)) for ref in refs]
                self._memory[memory] = (stamp, leaves)

    def _leaf(self, ref: instructions.Ref) -> Any:
        token, leaf = ref
        if token < 0:
            leaves = self._memory.get(-1 - token, (0, []))[1]
        else:
            leaves = self._values.get(token, [])
        if not 0 <= leaf < len(leaves):
            raise _Lost(f"value {token}, leaf {leaf}", ALL if token < 0 else VALUES)
        return leaves[leaf]

    def _failure(self, to: Message, reason: str, lost: int = 0) -> bytes:
        arrays = {"reason": wire.text(reason[:2000]), "lost": np.array(lost, np.uint8)}
        return self._message(Kind.FAILURE, to, arrays)

    def _message(self, kind: Kind, to: Message, arrays: Mapping[str, Any]) -> bytes:
        message = Message(kind, to.name, self.id, to.slot, to.exchange, arrays)
        return wire.encode(message, is_checked=self._is_checked)


def nbytes(arrays: Mapping[str, Any], kind: str) -> int:
    """Bytes of the values, ``value``, or of the replies, ``give``, that a message carries."""
    mine = (array for path, array in arrays.items() if path.startswith(f"{kind}/"))
    return sum(array.size * array.dtype.itemsize for array in mine)
