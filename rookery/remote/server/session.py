"""Exchanges as they really go: deadlines, retries, and replies late, double or nonsense."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from rookery.engines.engine import Event
from rookery.remote.client.worker import ALL, nbytes
from rookery.remote.protocol import handshake, wire
from rookery.remote.protocol.plan import spec
from rookery.remote.protocol.wire import Kind, Message, WireError
from rookery.remote.server import replies
from rookery.remote.server.backoff import Backoff
from rookery.remote.server.policy import Policy, is_finite, norm
from rookery.remote.server.requests import Attempt, Reply, Request, TooFewReplies
from rookery.remote.transports.port import Failure, Port


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
        self._room = replies.ReplyLimits(
            max(replies.SPARE, 2 * handshake.write(agreed)["agreement"].size)
        )
        self._silence = Backoff(policy.wait_for)
        # by step and client that was left alone, the round in which that was last noted
        self._noted: dict[tuple[str, int], int] = {}
        # by client and number, jobs whose replies nobody waits for yet, and what has come of them
        self._under_way: dict[tuple[int, int], Message | Failure | None] = {}
        # a server that was started again must not use the numbers of the one before
        self._number = time.time_ns()

    def greet(self, clients: Iterable[int]) -> None:
        """Agree with clients, or raise if one of them would compute something else.

        Those that do not answer are noted; they are greeted again when they do.
        """
        self._number += 1
        asks = {c: Request(c, lambda: handshake.write(self._agreed), []) for c in clients}
        state = Attempt(asks)
        self._attempt(Kind.HELLO, "agreement", state, {})
        for client, reason in state.failed.items():
            self.say("agreement", client, reason)

    def begin(
        self, step: str, asks: Mapping[int, Request], again: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Send and do not wait; by slot, the number under which the reply will come.

        They are had from :meth:`ask` or :meth:`gather`, whenever that is.

        Args:
            step: the name of the step.
            asks: by slot.
            again: by slot, the number of what was sent before and may not have arrived.
        """
        self._number += 1
        numbers = dict.fromkeys(asks, self._number) | dict(again or {})
        messages = (
            self._message(Kind.RUN, step, slot, ask, numbers[slot]) for slot, ask in asks.items()
        )
        self._under_way |= {(ask.client, numbers[slot]): None for slot, ask in asks.items()}
        for client, arrival in self.port.exchange(step, messages, 0.0):
            self._take(Kind.RUN, step, client, arrival, Attempt({}))
        return numbers

    def ask(
        self,
        step: str,
        asks: Mapping[int, Request],
        *,
        needs_all: bool,
        fewest: int = 1,
        begun: Mapping[int, int] | None = None,
        spares: bool = True,
    ) -> dict[int, Reply]:
        """The replies by slot; those missing have been noted.

        Args:
            step: the name of the step, for the clients to check and for the notes.
            asks: by slot.
            needs_all: whether every slot must answer, whatever the policy says.
            fewest: how many must answer at least, of those asked, whatever the policy says.
            begun: by slot, the number of what was sent before, so that only the reply is missing.
            spares: whether clients that were silent may be left alone if the others are enough.
        """
        if not asks:
            return {}
        needed = max(self.policy.needed(len(asks)), min(fewest, len(asks)))
        least = len(asks) if needs_all else needed
        self._number += 1
        state, attempt, helped = Attempt(asks, dict(begun or {})), 0, set()
        spared = self._spared(step, asks, least) if spares and not begun else {}
        for slot in spared:
            del state.waiting[slot]
        while True:
            self._attempt(Kind.RUN, step, state, begun or {})
            begun = {}  # from now on requests are sent again, as they may have got lost
            for slot, reason in state.failed.items():
                self.say(step, asks[slot].client, reason)
            forgetful = {asks[slot].client: lost for slot, lost in state.lost.items()}
            for slot, ask in state.waiting.items():
                # a late reply of who was only silent is as good; the others are asked anew
                if slot not in state.silent or ask.client in forgetful:
                    state.numbers.pop(slot, None)
            if forgetful:
                self.remind(forgetful)
                if set(forgetful) - helped:  # once for each of them, it costs no attempt
                    helped |= set(forgetful)
                    continue
            if len(state.replies) >= least:
                self._silence.begin(asks[slot].client for slot in state.silent)
                return state.replies
            if len(state.spoiled) == len(asks):
                return state.spoiled  # all clients alike: that is a divergence, not a bad client
            if spared:  # the others were not enough after all
                state.waiting |= spared
                spared = {}
                continue
            count = f"{len(state.replies)} of {len(asks)} clients answered, {least} are needed"
            if attempt >= self.policy.retries or not state.waiting:
                missing = sorted({asks[slot].client for slot in asks.keys() - state.replies.keys()})
                raise TooFewReplies(f"round {self.round}, {step}: {count}; {missing} did not.")
            seconds = self.policy.pause(attempt)
            attempt += 1
            self.say(step, None, f"{count}; asking again in {seconds:g} s")
            time.sleep(seconds)

    def gather(
        self,
        step: str,
        asks: Mapping[int, Request],
        begun: Mapping[int, tuple[int, float]],
        is_enough: Callable[[Collection[int], Collection[int]], bool],
    ) -> Attempt:
        """What has come of jobs when enough has, or when no more can.

        A slot that is silent for longer than the policy allows, since its job began, has failed.

        Args:
            step: the name of the step.
            asks: by slot.
            begun: by slot, the number of its job, and when it began by the monotonic clock.
            is_enough: of the slots that have answered and those that still may.
        """
        state = Attempt(asks, {slot: number for slot, (number, _) in begun.items()})
        for slot, ask in asks.items():
            self._take_early(Kind.RUN, step, ask.client, state.numbers[slot], state)
        while True:
            waiting = asks.keys() - state.replies.keys() - state.failed.keys()
            is_over = not waiting or is_enough(state.replies, waiting)
            until = min((begun[slot][1] for slot in waiting), default=0.0) + self.policy.wait_for
            left = 0.0 if is_over else max(until - time.monotonic(), 0.0)
            for client, arrival in self.port.exchange(step, [], left):
                if self._take(Kind.RUN, step, client, arrival, state) and not is_over:
                    break
            else:
                if is_over:  # with all that had come by then
                    break
                for slot in waiting:
                    if time.monotonic() < until:
                        state.failed[slot] = "no reply can come"
                    elif begun[slot][1] + self.policy.wait_for <= until:
                        state.failed[slot] = self._silent()
                        state.silent.add(slot)
        for slot in asks.keys() - state.replies.keys() - state.failed.keys():
            self._under_way[asks[slot].client, state.numbers[slot]] = None
        for slot, reason in state.failed.items():
            self.say(step, asks[slot].client, reason)
        return state

    def remind(self, forgetful: Mapping[int, int]) -> None:
        """Agree again with clients that were started anew; all that they had is sent again."""
        for client, lost in forgetful.items():
            self.forget(client, lost == ALL)
            try:
                self.greet([client] if lost == ALL else [])
            except handshake.HandshakeError as error:  # one client's, and no reason to stop the run
                self.say("agreement", client, str(error))
        self._number += 1  # what is sent now, clients have not answered before

    def forget_jobs(self) -> None:
        """Drop what comes back of jobs that were begun."""
        self._under_way.clear()

    def _spared(self, step: str, asks: Mapping[int, Request], least: int) -> dict[int, Request]:
        """Slots whose clients are left alone, if the others may be enough; it is noted."""
        alone = self._silence.alone()
        spared = {slot: ask for slot, ask in asks.items() if ask.client in alone}
        if len(asks) - len(spared) < least:
            return {}
        for client in {ask.client for ask in spared.values()}:
            if self._noted.get((step, client)) != self.round:
                self._noted[step, client] = self.round
                self.say(step, client, "not asked in this round: it was silent before")
        return spared

    def _attempt(self, kind: Kind, step: str, state: Attempt, begun: Mapping[int, int]) -> None:
        state.failed, state.lost, state.silent = {}, {}, set()
        settled = set[int]()
        state.numbers = {slot: self._number for slot in state.waiting} | state.numbers
        new = {slot: ask for slot, ask in state.waiting.items() if slot not in begun}
        # made one after another, so that the first is on its way while the last is put together
        messages = (
            self._message(kind, step, slot, ask, state.numbers[slot]) for slot, ask in new.items()
        )
        for slot, number in begun.items():
            client = state.asked[slot].client
            settled |= set(self._take_early(kind, step, client, number, state))
        outstanding = set(state.waiting) - settled
        arrivals = self.port.exchange(step, messages, self.policy.wait_for)
        for client, arrival in arrivals if outstanding else ():
            outstanding -= set(self._take(kind, step, client, arrival, state))
            if not outstanding:
                break
        for slot in outstanding:
            state.failed[slot] = self._silent()
            state.silent.add(slot)
        for slot in (*state.replies, *state.refused):
            state.waiting.pop(slot, None)

    def _message(
        self, kind: Kind, step: str, slot: int, ask: Request, number: int
    ) -> tuple[int, bytes]:
        self._room.make(ask)
        arrays = ask.build()
        self.bytes_down += nbytes(arrays, "value")
        message = Message(kind, step, ask.client, slot, number, arrays)
        is_checked = not getattr(self.port, "is_reliable", False)
        return ask.client, wire.encode(message, is_checked=is_checked)

    def _take(
        self, kind: Kind, step: str, client: int, arrival: bytes | Failure, state: Attempt
    ) -> Collection[int]:
        """File what has come in; the slots that need not be waited for any longer."""
        if isinstance(arrival, Failure):
            return self._fail(client, arrival, state)
        try:
            message = wire.decode(arrival, self._room.of(client))
            if message.client != client:
                raise WireError(f"it claims to be of client {message.client}")
            if message.exchange == 0 and message.kind is Kind.FAILURE:
                # a client that could not read its request does not know the number either
                raise WireError(wire.read_text(message.arrays.get("reason")))
        except WireError as error:
            return self._fail(client, Failure(f"reply refused: {error}"), state)
        if (client, message.exchange) in self._under_way:
            self._under_way[client, message.exchange] = message
            return ()
        return self._arrived(kind, step, client, message, state)

    def _take_early(
        self, kind: Kind, step: str, client: int, number: int, state: Attempt
    ) -> Collection[int]:
        """Take what came of a job before it was asked for; from now on somebody waits for it."""
        early = self._under_way.pop((client, number), None)
        if isinstance(early, Failure):
            return self._fail(client, early, state)
        return () if early is None else self._arrived(kind, step, client, early, state)

    def _fail(self, client: int, failure: Failure, state: Attempt) -> Collection[int]:
        """Nothing that a client was asked for will come, or nobody can tell what has come."""
        for key, what in self._under_way.items():
            if key[0] == client and what is None:
                self._under_way[key] = failure
        slots = [
            slot
            for slot, ask in state.waiting.items()
            if ask.client == client and slot not in state.replies
        ]
        state.failed |= dict.fromkeys(slots, failure.reason)
        state.silent.difference_update(slots)
        return slots

    def _silent(self) -> str:
        return f"no reply within {self.policy.wait_for:g} s"

    def _arrived(
        self, kind: Kind, step: str, client: int, message: Message, state: Attempt
    ) -> Collection[int]:
        """Take a reply, or say why not; the slots that need not be waited for any longer."""
        if message.exchange not in state.numbers.values():
            self.say(step, client, f"late reply dropped, of {message.name}")
            return ()
        slot, ask = message.slot, state.asked.get(message.slot)
        is_expected = state.numbers.get(slot) == message.exchange and message.name == step
        if ask is None or ask.client != client or not is_expected:
            reason = f"reply refused: it is of {message.name}, slot {message.slot}"
            if not (slots := self._fail(client, Failure(reason), state)):
                self.say(step, client, reason)
            return slots
        if slot in state.replies:
            self.say(step, client, f"double reply dropped, of {message.name}")
            return ()
        state.failed.pop(slot, None)
        state.silent.discard(slot)
        try:
            reply = self._checked(kind, message, ask)
        except WireError as error:
            state.failed[slot] = str(error)
            lost = message.arrays.get("lost")
            if lost is not None and spec(lost) == "uint8[]" and lost > 0:
                state.lost[slot] = int(lost)
            return [slot]
        if ask.is_billed:
            self.bytes_up += nbytes(message.arrays, "give")
        if not is_finite(reply.leaves):
            state.failed[slot] = "reply refused: it holds NaN or infinity"
            state.spoiled[slot] = reply
            state.refused.add(slot)
        elif (size := norm(reply.leaves, self.policy.largest_norm)) > self.policy.largest_norm:
            state.failed[slot] = (
                f"reply refused: its norm is {size:.3g}, the limit {self.policy.largest_norm:g}"
            )
            state.refused.add(slot)
        else:
            state.replies[slot] = reply
            self._silence.end(client)
        return [slot]

    def _checked(self, kind: Kind, message: Message, ask: Request) -> Reply:
        if not (kind is Kind.HELLO and message.kind is Kind.HELLO):
            return replies.read(message, ask)
        theirs = handshake.read(message.arrays)
        if differing := handshake.differences(self._agreed, theirs):
            raise handshake.HandshakeError(
                f"client {ask.client} does not agree with the server. " + "; ".join(differing)
            )
        return Reply([])

    def say(self, step: str, client: int | None, reason: str) -> None:
        """Note something for the run's record; clients may have written the reason."""
        self.note(Event(self.round, step, client, wire.tidy(reason)))
