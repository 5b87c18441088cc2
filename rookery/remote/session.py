"""Exchanges as they really go: deadlines, retries, and replies late, double or nonsense."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rookery.engines.engine import Event
from rookery.remote import agreement, wire
from rookery.remote.policy import Policy, is_finite, norm
from rookery.remote.port import Failure, Port
from rookery.remote.rehearsal import spec
from rookery.remote.wire import Kind, Message, WireError
from rookery.remote.worker import ALL, nbytes


class TooFew(RuntimeError):
    """Fewer clients have answered than the policy asks for, and asking again did not help."""


class MemoryLost(RuntimeError):
    """A client was started anew, and what it had kept since the last checkpoint is gone."""


@dataclass(frozen=True)
class Ask:
    """What one slot is asked for, made anew for every attempt, as a client may have forgotten.

    Attributes:
        client: the client's number.
        build: the arrays of the message.
        wanted: types and shapes of the leaves that are to come back.
        is_billed: whether an algorithm asks; checkpoints are not billed.
    """

    client: int
    build: Callable[[], Mapping[str, Any]]
    wanted: list[str]
    is_billed: bool = True


@dataclass(frozen=True)
class Reply:
    """What one slot gave."""

    leaves: list[Any]
    work: tuple[int, int] = (0, 0)


@dataclass
class _Attempt:
    """Which slots an exchange still waits for, and what it has."""

    asked: Mapping[int, Ask]
    waiting: dict[int, Ask] = field(init=False)
    replies: dict[int, Reply] = field(default_factory=dict)
    spoiled: dict[int, Reply] = field(default_factory=dict)
    """Replies that are not finite."""
    failed: dict[int, str] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    """Slots whose client has lost values, or everything."""

    def __post_init__(self):
        self.waiting = dict(self.asked)


class Session:
    """The server's side of a run, above a port.

    Attributes:
        round: the number of the round, for the notes.
        bytes_down, bytes_up: of values and replies in messages that were really sent.
    """

    def __init__(self, port: Port, policy: Policy, agreed: dict[str, str]):
        self.port = port
        self.policy = policy
        self.round = 0
        self.bytes_down = self.bytes_up = 0
        self.note: Callable[[Event], None] = lambda event: None
        self.forget: Callable[[int, bool], None] = lambda client, everything: None
        self._agreed = agreed
        # a server that was started again must not use the numbers of the one before
        self._number = time.time_ns()

    def greet(self, clients: Iterable[int]) -> None:
        """Agree with clients, or raise if one of them would compute something else.

        Those that do not answer are noted; they are greeted again when they do.
        """
        self._number += 1
        asks = {c: Ask(c, lambda: agreement.write(self._agreed), []) for c in clients}
        state = _Attempt(asks)
        self._attempt(Kind.HELLO, "agreement", state)
        for client, reason in state.failed.items():
            self.say("agreement", client, reason)

    def ask(self, step: str, asks: Mapping[int, Ask], *, needs_all: bool) -> dict[int, Reply]:
        """The replies by slot; those missing have been noted.

        Args:
            step: the name of the step, for the clients to check and for the notes.
            asks: by slot.
            needs_all: whether every slot must answer, whatever the policy says.
        """
        if not asks:
            return {}
        least = len(asks) if needs_all else self.policy.needed(len(asks))
        self._number += 1
        state, attempt, helped = _Attempt(asks), 0, set()
        while True:
            self._attempt(Kind.RUN, step, state)
            for slot, reason in state.failed.items():
                self.say(step, asks[slot].client, reason)
            forgetful = {asks[slot].client: lost for slot, lost in state.lost.items()}
            if forgetful:
                self._remind(forgetful)
                if set(forgetful) - helped:  # once for each of them, it costs no attempt
                    helped |= set(forgetful)
                    continue
            if len(state.replies) >= least:
                return state.replies
            if not state.replies and len(state.spoiled) >= least:
                return state.spoiled  # all clients alike: that is a divergence, not a bad client
            count = f"{len(state.replies)} of {len(asks)} clients answered, {least} are needed"
            if attempt >= self.policy.retries:
                missing = sorted({asks[slot].client for slot in state.waiting})
                raise TooFew(f"round {self.round}, {step}: {count}; {missing} did not.")
            seconds = min(self.policy.back_off * 2**attempt, self.policy.wait_for)
            attempt += 1
            self.say(step, None, f"{count}; asking again in {seconds:g} s")
            time.sleep(seconds)

    def _remind(self, forgetful: Mapping[int, int]) -> None:
        """Agree again with clients that were started anew; all that they had is sent again."""
        for client, lost in forgetful.items():
            self.forget(client, lost == ALL)
        self.greet([client for client, lost in forgetful.items() if lost == ALL])
        self._number += 1  # what is sent now, clients have not answered before

    def _attempt(self, kind: Kind, step: str, state: _Attempt) -> None:
        state.failed, state.lost = {}, {}
        outstanding, messages = set(state.waiting), []
        for slot, ask in state.waiting.items():
            arrays = ask.build()
            self.bytes_down += nbytes(arrays, "value")
            message = Message(kind, step, ask.client, slot, self._number, arrays)
            messages.append((ask.client, wire.encode(message)))
        for client, arrival in self.port.exchange(step, messages, self.policy.wait_for):
            if isinstance(arrival, Failure):
                settled = dict.fromkeys(_slots(state, client), arrival.reason)
                state.failed |= settled
            else:
                settled = self._arrived(kind, step, client, arrival, state)
            outstanding -= set(settled)
            if not outstanding:
                break
        for slot in outstanding:
            state.failed[slot] = f"no reply within {self.policy.wait_for:g} s"
        for slot in state.replies:
            state.waiting.pop(slot, None)

    def _arrived(
        self, kind: Kind, step: str, client: int, data: bytes, state: _Attempt
    ) -> Collection[int]:
        """Take a reply, or say why not; the slots that need not be waited for any longer."""
        try:
            message = wire.decode(data)
            if message.client != client:
                raise WireError(f"it claims to be of client {message.client}")
            is_late = message.exchange != self._number
            if is_late and message.exchange == 0 and message.kind is Kind.FAILURE:
                # a client that could not read its request does not know the number either
                raise WireError(wire.read_text(message.arrays.get("reason")))
            if is_late:
                self.say(step, client, f"late reply dropped, of {message.name}")
                return ()
            ask = state.asked.get(message.slot)
            if ask is None or ask.client != client or message.name != step:
                raise WireError(f"it is of {message.name}, slot {message.slot}")
            if message.slot in state.replies:
                self.say(step, client, f"double reply dropped, of {message.name}")
                return ()
        except WireError as error:
            slots = _slots(state, client)
            state.failed |= dict.fromkeys(slots, f"reply refused: {error}")
            return slots
        slot = message.slot
        state.failed.pop(slot, None)
        try:
            reply = self._checked(kind, message, ask)
        except WireError as error:
            state.failed[slot] = str(error)
            lost = message.arrays.get("lost")
            if lost is not None and spec(lost) == "uint8[]" and lost > 0:
                state.lost[slot] = int(lost)
            return [slot]
        self.bytes_up += nbytes(message.arrays, "give") if ask.is_billed else 0
        if not is_finite(reply.leaves):
            state.failed[slot] = "reply refused: it holds NaN or infinity"
            state.spoiled[slot] = reply
        elif (size := norm(reply.leaves)) > self.policy.largest_norm:
            state.failed[slot] = (
                f"reply refused: its norm is {size:.3g}, the limit {self.policy.largest_norm:g}"
            )
        else:
            state.replies[slot] = reply
        return [slot]

    def _checked(self, kind: Kind, message: Message, ask: Ask) -> Reply:
        arrays = message.arrays
        if message.kind is Kind.FAILURE:
            raise WireError(wire.read_text(arrays.get("reason", np.zeros(0, np.uint8))))
        if kind is Kind.HELLO and message.kind is Kind.HELLO:
            if differing := agreement.differences(self._agreed, agreement.read(arrays)):
                raise agreement.Disagreement(
                    f"client {ask.client} does not agree with the server. " + "; ".join(differing)
                )
            return Reply([])
        leaves = [array for path, array in arrays.items() if path.startswith("give/")]
        work = arrays.get("work")
        if message.kind is not Kind.REPLY or work is None or spec(work) != "uint64[2]":
            raise WireError("reply refused: it is not the reply to a step")
        if len(arrays) != len(leaves) + 1 or [spec(leaf) for leaf in leaves] != ask.wanted:
            raise WireError(
                f"reply refused: {ask.wanted} was wanted, got {[spec(leaf) for leaf in leaves]}"
            )
        return Reply(leaves, (int(work[0]), int(work[1])))

    def say(self, step: str, client: int | None, reason: str) -> None:
        """Note something for the run's record."""
        self.note(Event(self.round, step, client, reason))


def _slots(state: _Attempt, client: int) -> list[int]:
    return [slot for slot, ask in state.waiting.items() if ask.client == client]
