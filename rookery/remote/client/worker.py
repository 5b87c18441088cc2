"""The client's side: answers messages; keeps its data, values and memory."""

from collections import deque
from collections.abc import Sequence

import jax
import numpy as np

from rookery.clients.population import Population
from rookery.program.algorithm import AbstractAlgorithm, numbers_to_arrays
from rookery.program.memory import Memory
from rookery.program.row_privacy import RowPrivate
from rookery.remote.client import batching
from rookery.remote.client.batching import Answering, PendingCall
from rookery.remote.client.enforcer import Enforcer
from rookery.remote.client.masking import KeysLost, Masking
from rookery.remote.client.site_policy import REFUSED, Refused
from rookery.remote.protocol import handshake, instructions, wire
from rookery.remote.protocol.plan import Call, Computed, Inputs, Plan, is_beyond, spec
from rookery.remote.protocol.tracing import trace_round
from rookery.remote.protocol.wire import Arrays, Kind, Leaf, Message, WireError
from rookery.types import Problem, Tree

_KEPT = 8  # latest replies, sent again if their request is received again
_KEPT_BYTES = 16 << 20  # of these replies together; a larger one only until the next request
_HELLOS = 64  # numbers of handshakes that are remembered

_BEHIND, _AHEAD = 1 << 20, 1 << 32
"""How far the number of a request may lie from the latest one's, in the same session."""

_MOST_STEPS = 4096  # of a request
_MOST_VALUES = 1 << 16  # of a round

NO_WORK = np.zeros(2, np.uint64)

VALUES, ALL = 1, 2
"""What a client may have lost: the values of the round, or everything."""


class _Lost(LookupError):
    """The request refers to something that this client does not have, or no longer has."""

    def __init__(self, what: str, lost: int):
        super().__init__(what)
        self.lost = lost


class _Values:
    """Values by token. Their bytes are counted as they come: a round may have many exchanges."""

    def __init__(self):
        self._leaves: dict[int, list[Leaf]] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._leaves)

    def get(self, token: int) -> list[Leaf]:
        """The leaves of a value; none if there is no such value."""
        return self._leaves.get(token, [])

    def put(self, token: int, leaves: list[Leaf]) -> None:
        """Add a value, or replace it."""
        self.nbytes += _nbytes(leaves) - _nbytes(self.get(token))
        self._leaves[token] = leaves


def _nbytes(leaves: Sequence[Leaf]) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


class Worker:
    """One client. It needs no network: a transport calls :meth:`answer` with each message.

    >>> import rookery as rk
    >>> from rookery.program.algorithm import first_state
    >>> zoo = rk.zoo.quadratic_losses(n_clients=2, size=2, rows=3)
    >>> algorithm = rk.FedAvg(lr=0.1, local_steps=2)
    >>> rows = rk.Population.stacked(zoo.data).only(1)
    >>> state = first_state(algorithm, zoo.problem, 2, zoo.start)
    >>> worker = Worker(1, zoo.problem, algorithm, rows, state)
    >>> wire.decode(worker.answer(b"not a message")).kind.name
    'FAILURE'

    Args:
        id: the client's number.
        problem: the problem.
        algorithm: the algorithm whose steps the client runs.
        population: has this client's rows; see :meth:`Population.only`. Clients that share one
            population object on the device can be batched.
        state: the algorithm's state before the first round, or its shapes.
        plan: the plan, if it was traced before; saves the time of tracing it again.
        limits: limits on the sizes of requests.
        is_checked: whether the checksum of replies covers their arrays; see
            :class:`~rookery.remote.transports.port.Port`.
        enforcer: enforces the site's policy; None answers whatever the server asks for.
    """

    def __init__(
        self,
        id: int,
        problem: Problem,
        algorithm: AbstractAlgorithm,
        population: Population,
        state: Tree,
        plan: Plan | None = None,
        limits: wire.Limits = wire.LIMITS,
        is_checked: bool = True,
        enforcer: Enforcer | None = None,
    ):
        algorithm = numbers_to_arrays(algorithm)
        plan = plan if plan is not None else trace_round(algorithm, problem, population, state)
        self.id = id
        self._enforcer, self._objection = enforcer, None
        if enforcer is not None:
            self._objection = enforcer.objection(algorithm, plan, population, id)
            plan = plan.bounded(enforcer.policy.most_local_iterations)
        self._plan = plan
        is_here = all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(population))
        self._population = population if is_here else jax.device_put(population)
        self._limits, self._is_checked = limits, is_checked
        self._configuration = handshake.configuration(
            problem, algorithm, population.n_clients, plan
        )
        self._masking = None if plan.secure is None else Masking(id, plan.secure)
        self._has_noise_of_key = isinstance(algorithm, RowPrivate)
        self._memory_specs = _memory_specs(state)
        self._handshake_done = False
        self._latest = 0  # largest exchange number of the session so far
        self._hellos: deque[int] = deque(maxlen=_HELLOS)
        self._round = -1
        self._values = _Values()  # of the round
        self._origins: dict[int, tuple[Call, list[instructions.Ref]]] = {}  # of computed values
        self._memory: dict[int, tuple[int, list[Leaf]]] = {}  # memory: stamp, leaves
        self._answered: dict[tuple[int, int], wire.Parts] = {}

    def answer(self, data: wire.Buffer | wire.Parts) -> bytes:
        """The reply to a message; errors are reported in the reply."""
        return wire.joined(self.answer_in_parts(data))

    def answer_in_parts(self, data: wire.Buffer | wire.Parts) -> wire.Parts:
        """The reply in parts, of which large arrays are not copied."""
        (reply,) = batching.finish([self.answering(data)])
        return reply

    def answering(self, data: wire.Buffer | wire.Parts) -> Answering:
        """Generator form of :meth:`answer`: yields each call to run and receives its result.

        Values in the message are stored before the first call, so a second message to this client
        in the same exchange can be started before this one is answered.
        """
        unknown = Message(Kind.FAILURE, "", self.id)
        try:
            if self._enforcer is not None:
                self._enforcer.check_size(wire.size_of(data))
            message = wire.decode(data, self._limits)
        except WireError as error:
            return self._failure(unknown, f"malformed message: {error}")
        except Refused as refusal:
            return self._refusal(unknown, refusal)
        if message.client != self.id:
            return self._failure(message, f"this is client {self.id}, not {message.client}")
        seen = (message.exchange, message.slot)
        try:
            if self._enforcer is not None:
                self._enforcer.count_request(self.id)
            if seen in self._answered:
                return self._repeated(message)  # a duplicate request: not computed again
            reply = yield from self._reply(message)
        except Refused as refusal:
            return self._refusal(message, refusal)
        except _Lost as error:
            return self._failure(message, f"the client does not have {error}", error.lost)
        except KeysLost as error:
            return self._failure(message, f"the client does not have {error}", ALL)
        except WireError as error:  # about the request: it quotes no data
            return self._failure(message, f"{type(error).__name__}: {error}")
        except Exception as error:  # reported to the server; the client lives on
            return self._failure(message, self._described(message, error))
        self._answered[seen] = reply
        self._latest = message.exchange
        return reply

    def _check_number(self, message: Message) -> None:
        """Refuse requests of another session, and those that are out of date.

        A handshake begins a session, whatever its number: that of a server whose clock went back is
        lower than those before. Numbers of a session are close to each other, so a stray request
        with a huge number does not make all others out of date.
        """
        number, latest = message.exchange, self._latest
        if message.kind is Kind.HELLO:
            if number in self._hellos:
                raise WireError("outdated request: a handshake of an earlier session")
            return
        if not latest - _BEHIND <= number <= latest + _AHEAD:
            raise _Lost("a handshake with this server", ALL)
        if number < latest:
            raise WireError("outdated request: a later exchange was already answered")

    def _forget_replies(self) -> None:
        """Keep the latest replies, within limits: a server that asks for more has the others."""
        kept = 0
        for place, key in enumerate(reversed(list(self._answered))):
            kept += wire.size_of(self._answered[key])
            if place >= _KEPT or kept > _KEPT_BYTES:
                del self._answered[key]

    def _reply(self, message: Message) -> Answering:
        if self._objection is not None:
            raise Refused(self._objection)
        self._check_number(message)
        if message.exchange > self._latest:
            self._forget_replies()
        if message.kind is Kind.HELLO:
            theirs = handshake.read(message.arrays)
            self._handshake_done = not handshake.differences(theirs, self._configuration)
            self._values, self._origins, self._memory, self._round = _Values(), {}, {}, -1
            self._hellos.append(message.exchange)
            self._answered.clear()
            hello = handshake.write(self._configuration)
            if self._masking is not None:
                hello[handshake.KEY] = self._masking.renew()
            return self._logged(message, self._message(Kind.HELLO, message, hello), [], None)
        if message.kind not in (Kind.RUN, Kind.KEYS, Kind.UNMASK):
            raise WireError(f"a client takes requests, not messages of kind {message.kind.name}")
        if not self._handshake_done:
            raise _Lost("a handshake with this server", ALL)
        if message.kind is not Kind.RUN:
            reply = self._reply_of(message, self._keys_or_shares(message), NO_WORK)
            return self._logged(message, reply, [], None)
        wanted = instructions.read(message.arrays)
        if len(wanted.steps) > _MOST_STEPS:
            raise WireError(f"{len(wanted.steps)} steps in one request, the limit is {_MOST_STEPS}")
        if self._enforcer is not None:
            self._enforcer.check_incoming(message.arrays)
            self._enforcer.check_steps(len(wanted.steps))
        self._change_memory(wanted.commit)
        if wanted.round != self._round:
            self._round, self._values, self._origins = wanted.round, _Values(), {}
        self._store(message.arrays, wanted.tokens)
        self._change_memory(wanted.restore)
        self._check_memory()
        names = [call.name for call in map(self._call, wanted.steps)]
        if names and message.name not in names:
            raise WireError(f"the message is for step {message.name} but requests {names}")
        gradients = hessian_vectors = 0
        for i, step in enumerate(wanted.steps):
            leaves, done = yield self._pending_call(i, step, message)
            self._values.put(step.token, leaves)
            self._origins[step.token] = self._call(step), step.arguments
            if is_beyond(done):
                most = self._plan.most_iterations
                raise Refused(f"step {names[i]} has loops beyond most_local_iterations = {most}")
            (low, high), (low_2, high_2) = np.asarray(done).tolist()  # words of two counters
            gradients += low + (high << 32)
            hessian_vectors += low_2 + (high_2 << 32)
        self._check_memory()
        work = np.array((gradients, hessian_vectors), np.uint64)
        for ref in wanted.reply:
            self._check_leaves(ref)
        leaves, rho = [self._leaf(ref) for ref in wanted.reply], None
        if self._enforcer is not None:
            anchors = [self._anchor(ref) for ref in wanted.reply]
            leaves, rho = self._enforcer.released(self.id, message.name, leaves, anchors)
        sent = leaves
        if self._masking is not None and leaves:  # single replies leave this client masked, or not
            sent = [self._masking.mask(message.arrays, [np.asarray(leaf) for leaf in leaves])]
        return self._logged(message, self._reply_of(message, sent, work), leaves, rho)

    def _reply_of(self, message: Message, leaves: Sequence[Leaf], work: np.ndarray) -> wire.Parts:
        named = {f"reply/{i}": leaf for i, leaf in enumerate(leaves)}
        return self._message(Kind.REPLY, message, {"work": work, **named})

    def _keys_or_shares(self, message: Message) -> list[np.ndarray]:
        if self._masking is None:
            raise WireError("this client was set up without secure aggregation")
        if message.kind is Kind.KEYS:
            return self._masking.prepare(message.arrays)
        return [self._masking.reveal(message.arrays)]

    def _pending_call(
        self, i: int, step: instructions.Instruction, message: Message
    ) -> PendingCall:
        call = self._call(step)
        for place, ref in enumerate(step.arguments):
            if (value := self._computed(ref)) is None:
                continue
            if not self._plan.flow.may_be_used(value, call.number, place):
                raise WireError(
                    f"step {call.name} of this algorithm is not given leaf {value[1]} of "
                    f"{self._plan.calls[value[0]].name}"
                )
        values = [self._leaf(ref) for ref in step.arguments]
        if (got := [spec(v) for v in values]) != call.argument_specs:
            raise WireError(f"step {call.name} takes {call.argument_specs}, got {got}")
        settings: list[Leaf] = []
        for j, wanted in enumerate(call.traced_settings):
            sent = message.arrays.get(f"setting/{i}/{j}")
            if sent is None or (str(sent.dtype), sent.shape) != (wanted.dtype, wanted.shape):
                raise WireError(f"step {call.name} needs settings {call.traced_settings}")
            settings.append(sent)
        key = message.arrays.get(f"key/{i}")
        if (key is not None) != call.has_key:
            takes = "takes a key, got none" if call.has_key else "takes no key, got one"
            raise WireError(f"step {call.name} {takes}")
        if key is not None and not (isinstance(key, wire.Keys) and key.shape == ()):
            raise WireError(f"step {call.name} takes a single key, got {spec(key)}")
        if key is not None and self._enforcer is not None:
            inputs = [*values, *settings] if self._has_noise_of_key else []
            key = self._enforcer.mixed(self.id, key, inputs)
        folds = (self.id,) if step.occurrence < 0 else (self.id, step.occurrence)
        if key is None or step.occurrence == instructions.OWN_KEY:
            folds = ()
        own = tuple(np.uint32(n) for n in folds)
        return PendingCall(
            call, self._population, Inputs(np.int32(self.id), key, own, values, settings)
        )

    def _call(self, step: instructions.Instruction) -> Call:
        if not 0 <= step.call < len(self._plan.calls):
            raise WireError(f"step number {step.call} is not one of {len(self._plan.calls)}")
        return self._plan.calls[step.call]

    def _store(self, arrays: Arrays, tokens: list[int]) -> None:
        """Store values (``value/place/leaf``) and rows of memories (``row/place/leaf``)."""
        if any(token < 0 for token in tokens):
            raise WireError("a value has a negative token, which only memories may have")
        new: list[list[Leaf]] = [[] for _ in tokens]
        for path, array in arrays.items():
            kind, _, rest = path.partition("/")
            if kind not in ("value", "row"):
                continue
            place, _, leaf = rest.partition("/")
            if not (place.isdecimal() and len(place) < 20 and int(place) < len(new)):
                raise WireError(f"{path!r} is not one of the {len(new)} values")
            if leaf != str(len(new[int(place)])):
                raise WireError(f"{path!r} is out of order")
            new[int(place)].append(array)
        for token, leaves in zip(tokens, new, strict=True):
            self._values.put(token, leaves)

    def _change_memory(self, changes: list[instructions.MemoryChange]) -> None:
        for memory, stamp, refs in changes:
            if stamp > self._memory.get(memory, (-1,))[0]:
                for value in map(self._computed, refs):
                    if value is not None and value not in self._plan.flow.kept:
                        name = self._plan.calls[value[0]].name
                        raise WireError(f"this algorithm does not keep leaf {value[1]} of {name}")
                leaves = [self._leaf(ref) for ref in refs]
                got, specs = [spec(leaf) for leaf in leaves], self._memory_specs
                if not 0 <= memory < len(specs) or got != specs[memory]:
                    raise WireError(f"memory {memory} of {got}; this client has memories {specs}")
                # copied: a row of a batched result would keep the whole batch alive
                self._memory[memory] = (stamp, [jax.tree.map(np.array, leaf) for leaf in leaves])

    def _leaf(self, ref: instructions.Ref) -> Leaf:
        token, leaf = ref
        if token < 0:
            leaves = self._memory.get(-1 - token, (0, []))[1]
        else:
            leaves = self._values.get(token)
        if not 0 <= leaf < len(leaves):
            raise _Lost(f"leaf {leaf} of value {token}", ALL if token < 0 else VALUES)
        return leaves[leaf]

    def _computed(self, ref: instructions.Ref) -> Computed | None:
        """Which call of the algorithm has made a leaf; None if the server has sent it."""
        call, _ = self._origins.get(ref[0], (None, []))
        return None if call is None else (call.number, ref[1])

    def _check_leaves(self, ref: instructions.Ref) -> None:
        """Refuse to send what the algorithm would not upload."""
        value = self._computed(ref)
        if value is not None and not self._plan.flow.may_leave(value):
            name = self._plan.calls[value[0]].name
            raise WireError(f"this algorithm does not upload leaf {value[1]} of {name}")

    def _anchor(self, ref: instructions.Ref) -> Leaf | None:
        """What the server sent and a leaf has moved away from, if the leaf is an iterate."""
        token, leaf = ref
        call, arguments = self._origins.get(token, (None, []))
        for place in () if call is None else self._plan.anchors.get((call.number, leaf), ()):
            token, leaf = arguments[place]
            _, arguments = self._origins.get(token, (None, []))
        is_sent = (token, leaf) != ref and token >= 0 and token not in self._origins
        return self._leaf((token, leaf)) if is_sent else None

    def _check_memory(self) -> None:
        """Refuse to keep more than a round may need or the policy allows, and drop the values."""
        most = 4 * self._limits.body
        if len(self._values) > _MOST_VALUES or self._values.nbytes > most:
            self._values, self._origins = _Values(), {}
            raise WireError(
                f"the values of a round exceed {_MOST_VALUES} or {most} bytes; they are dropped"
            )
        if self._enforcer is None:
            return
        kept = sum(_nbytes(leaves) for _, leaves in self._memory.values())
        try:
            self._enforcer.check_memory(kept + self._values.nbytes)
        except Refused:
            self._values, self._origins = _Values(), {}
            raise

    def _logged(
        self, to: Message, reply: wire.Parts, leaves: list[Leaf], rho: float | None
    ) -> wire.Parts:
        """The reply, after its line in the site's log."""
        if self._enforcer is not None:
            self._enforcer.check_size(wire.size_of(reply))
            self._enforcer.sent(self.id, to.name, leaves, wire.size_of(reply), rho)
        return reply

    def _repeated(self, message: Message) -> wire.Parts:
        reply = self._answered[message.exchange, message.slot]
        if self._enforcer is not None:
            self._enforcer.repeated(self.id, message.name, wire.size_of(reply))
        return reply

    def _described(self, message: Message, error: Exception) -> str:
        """An error as the server may know it: with a policy its text stays at the site."""
        if self._enforcer is not None:
            return self._enforcer.error(self.id, message.name, error)
        return f"{type(error).__name__}: {error}"

    def _refusal(self, to: Message, refusal: Refused) -> wire.Parts:
        assert self._enforcer is not None, "only a enforcer refuses"
        self._enforcer.refused(self.id, to.name, str(refusal))
        reason = wire.encode_text(f"{REFUSED}{refusal}"[:2000])
        return self._message(Kind.FAILURE, to, {"reason": reason, "refused": np.array(1, np.uint8)})

    def _failure(self, to: Message, reason: str, lost: int = 0) -> wire.Parts:
        if self._enforcer is not None:
            self._enforcer.failed(self.id, to.name, reason)
        arrays = {"reason": wire.encode_text(reason[:2000]), "lost": np.array(lost, np.uint8)}
        return self._message(Kind.FAILURE, to, arrays)

    def _message(self, kind: Kind, to: Message, arrays: Arrays) -> wire.Parts:
        message = Message(kind, to.name, self.id, to.slot, to.exchange, arrays)
        return wire.encode_parts(message, is_checked=self._is_checked)


def _memory_specs(state: Tree) -> list[list[str]]:
    """Types and shapes of the leaves of each memory of a state, for one client."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Memory))
    rows = [jax.tree.leaves(node.rows) for node in nodes if isinstance(node, Memory)]
    return [
        [spec(jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)) for leaf in leaves]
        for leaves in rows
    ]


def nbytes(arrays: Arrays, kind: str) -> int:
    """Bytes of the ``value`` arrays, or of the ``reply`` arrays, in a message."""
    mine = (array for path, array in arrays.items() if path.startswith(f"{kind}/"))
    return sum(array.size * array.dtype.itemsize for array in mine)
