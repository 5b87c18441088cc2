"""Request and reply with deadlines and retries; rejects late, duplicate and malformed replies."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from rookery.engines.engine import Event
from rookery.remote.client.worker import ALL, nbytes
from rookery.remote.protocol import handshake, wire
from rookery.remote.protocol.plan import spec
from rookery.remote.protocol.wire import Kind, Message, WireError
from rookery.remote.server.backoff import Backoff
from rookery.remote.server.claimed_work import KINDS, ClaimedWork
from rookery.remote.server.client_record import ClientRecords
from rookery.remote.server.policy import Policy, is_finite, norm, outliers
from rookery.remote.server.requests import (
    MARGIN,
    Attempt,
    MemoryLost,
    Reply,
    ReplyLimits,
    Request,
    TooFewReplies,
    read_reply,
)
from rookery.remote.transports.port import Data, Failure, Port

MEMORY_LOST = "its memory of the last rounds is lost"


class Session:
    """The server's side of a run, above a port. It owns the records of all clients.

    Args:
        port: carries the messages.
        policy: deadlines, retries and limits.
        configuration: what clients must have in common with the server.
        client_names: the clients' names, for errors.
        claimed_work: checks the work that clients claim.
        on_event: called with every event.
        round: number of the first round.
        is_robust: whether a robust rule combines the replies, and decides about those that are not
            finite or out of proportion.

    Attributes:
        clients: what each client has, has confirmed, remembers and owes.
        bytes_down, bytes_up: bytes of values and of replies in the messages actually sent.
        public_keys: by client, the key of its latest handshake, if replies are masked.
    """

    def __init__(
        self,
        port: Port,
        policy: Policy,
        configuration: dict[str, str],
        client_names: Sequence[str],
        claimed_work: ClaimedWork,
        *,
        on_event: Callable[[Event], None],
        round: int = 0,
        is_robust: bool = False,
    ):
        self.port, self.policy = port, policy
        self._is_robust, self._claimed_work = is_robust, claimed_work
        self.clients = ClientRecords(len(client_names))
        self.bytes_down = self.bytes_up = 0
        self.public_keys: dict[int, bytes] = {}
        self._round = round
        self._names, self._on_event = client_names, on_event
        self._configuration = configuration
        size = handshake.write(configuration)["handshake"].size
        self._limits = ReplyLimits(max(MARGIN, 2 * size))
        self._backoff = Backoff(policy.wait_for)
        self._content: wire.Content | None = None  # of the last message
        # by step and client, the last round in which skipping the client was reported
        self._skip_reported: dict[tuple[str, int], int] = {}
        # by client and number, requests sent ahead of the exchange that will take their replies,
        # and what has arrived for them
        self._sent_ahead: dict[tuple[int, int], Message | Failure | None] = {}
        # exchange numbers must differ from those of an earlier server process
        self._number = time.time_ns()

    @property
    def round(self) -> int:
        """Number of the current round."""
        return self._round

    def begin_round(self, round: int) -> None:
        """Begin a round: clients drop the values of the last one."""
        self._round = round
        self.clients.new_round()

    def report(self, step: str, client: int | None, reason: str) -> None:
        """Record an event. A client may have written the reason."""
        self._on_event(Event(self._round, step, client, wire.printable(reason)))

    def name(self, client: int) -> str:
        """The name of a client, for errors."""
        return wire.printable(self._names[client])

    def handshake(self, clients: Iterable[int]) -> None:
        """Compare configurations; raise :class:`HandshakeError` if a client's differs.

        Clients that do not reply are reported, and repeat the handshake when they do.
        """
        self._number += 1
        hello = handshake.write(self._configuration)
        attempt = Attempt({c: Request(c, lambda: hello, []) for c in clients})
        self._attempt(Kind.HELLO, handshake.STEP, attempt, {})
        for client, reason in attempt.failed.items():
            self.report(handshake.STEP, client, reason)

    def send(
        self, step: str, requests: Mapping[int, Request], resent: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Send requests without waiting; returns by slot the number that the reply will have.

        :meth:`exchange` or :meth:`collect` take the replies later.

        Args:
            step: name of the step.
            requests: by slot.
            resent: by slot, the number of a request sent before that may not have arrived.
        """
        self._number += 1
        numbers = dict.fromkeys(requests, self._number) | dict(resent or {})
        messages = (
            self._message(Kind.RUN, step, slot, request, numbers[slot])
            for slot, request in requests.items()
        )
        self._sent_ahead |= {(r.client, numbers[slot]): None for slot, r in requests.items()}
        for client, arrival in self.port.exchange(step, messages, 0.0):
            self._take(Kind.RUN, step, client, arrival, Attempt({}))
        return numbers

    def exchange(
        self,
        step: str,
        requests: Mapping[int, Request],
        *,
        needs_all: bool = False,
        at_least: int = 1,
        needed: int | None = None,
        kind: Kind = Kind.RUN,
        sent: Mapping[int, int] | None = None,
        may_skip: bool = True,
    ) -> dict[int, Reply]:
        """Send requests and wait, with retries; returns replies by slot and reports the others.

        Args:
            step: name of the step; clients check it.
            requests: by slot.
            needs_all: whether every slot must reply, whatever the policy.
            at_least: how many slots must reply at least, whatever the policy.
            needed: how many slots must reply, in place of all these rules.
            kind: what the requests are for.
            sent: by slot, the number of a request already sent, which only lacks its reply.
            may_skip: whether clients in back-off may be skipped if the others suffice.
        """
        if not requests:
            return {}
        if needed is None:
            needed = max(self.policy.needed(len(requests)), min(at_least, len(requests)))
            needed = len(requests) if needs_all else needed
        self._number += 1
        state, retries, recovered = Attempt(requests, dict(sent or {})), 0, set[int]()
        skipped = self._skipped(step, requests, needed) if may_skip and not sent else {}
        for slot in skipped:
            del state.pending[slot]
        while True:
            self._attempt(kind, step, state, sent or {})
            self._reject_outliers(step, state)
            sent = {}  # from now on requests are sent again: they may have got lost
            for slot, reason in state.failed.items():
                self.report(step, requests[slot].client, reason)
            lost = {requests[slot].client: what for slot, what in state.lost.items()}
            for slot, request in state.pending.items():
                # after a timeout alone, a late reply is accepted; other failures need a new number
                if slot not in state.timed_out or request.client in lost:
                    state.numbers.pop(slot, None)
            if lost:
                self.recover(lost)
                if set(lost) - recovered:  # the first recovery of a client costs no retry
                    recovered |= set(lost)
                    continue
            if len(state.replies) >= needed:
                self._backoff.begin(requests[slot].client for slot in state.timed_out)
                return state.replies
            if len(state.non_finite) == len(requests):
                return state.non_finite  # all clients alike: a divergence, not a faulty client
            if skipped:  # the others did not suffice after all
                state.pending |= skipped
                skipped = {}
                continue
            count = f"{len(state.replies)} of {len(requests)} clients replied, {needed} are needed"
            if retries >= self.policy.retries or not state.pending:
                missing = {requests[slot].client for slot in requests.keys() - state.replies.keys()}
                raise self.too_few(step, count, missing)
            seconds = self.policy.pause(retries)
            retries += 1
            self.report(step, None, f"{count}; retrying in {seconds:g} s")
            time.sleep(seconds)

    def collect(
        self,
        step: str,
        requests: Mapping[int, Request],
        sent: Mapping[int, tuple[int, float]],
        is_enough: Callable[[Collection[int], Collection[int]], bool],
    ) -> Attempt:
        """Collect replies to requests sent before, until enough have come or no more can.

        A slot has failed when the policy's deadline has passed since its request was sent.

        Args:
            step: name of the step.
            requests: by slot.
            sent: by slot, the request's number and when it was sent, by the monotonic clock.
            is_enough: whether to stop, given the slots that have replied and those still pending.
        """
        state = Attempt(requests, {slot: number for slot, (number, _) in sent.items()})
        for slot, request in requests.items():
            self._take_early(Kind.RUN, step, request.client, state.numbers[slot], state)
        while True:
            pending = requests.keys() - state.replies.keys() - state.failed.keys()
            is_over = not pending or is_enough(state.replies, pending)
            until = min((sent[slot][1] for slot in pending), default=0.0) + self.policy.wait_for
            left = 0.0 if is_over else max(until - time.monotonic(), 0.0)
            for client, arrival in self.port.exchange(step, [], left):
                if self._take(Kind.RUN, step, client, arrival, state) and not is_over:
                    break
            else:
                if is_over:  # including everything that had arrived by then
                    break
                for slot in pending:
                    if time.monotonic() < until:
                        state.failed[slot] = "no reply can come any more"
                    elif sent[slot][1] + self.policy.wait_for <= until:
                        state.failed[slot] = self._timeout()
                        state.timed_out.add(slot)
        for slot in requests.keys() - state.replies.keys() - state.failed.keys():
            self._sent_ahead[requests[slot].client, state.numbers[slot]] = None
        self._reject_outliers(step, state)
        for slot, reason in state.failed.items():
            self.report(step, requests[slot].client, reason)
        return state

    def recover(self, lost: Mapping[int, int]) -> None:
        """Update the records of clients that lost values, or everything; the latter shake hands.

        Raises :class:`MemoryLost` if a client lost memory changes and the policy needs all clients.
        """
        for client, what in lost.items():
            if what != ALL:
                self.clients[client].lost_values()
                continue
            if self.clients[client].has_new_memory:
                self.report("memory", client, MEMORY_LOST)
                if self.policy.needed(len(self.clients)) == len(self.clients):
                    raise MemoryLost(
                        f"round {self._round}: {self.name(client)} was restarted and has lost what "
                        "it kept in the last rounds."
                    )
            self.clients[client].restarted()
            try:
                self.handshake([client])
            except handshake.HandshakeError as error:  # one client's failure must not end the run
                self.report(handshake.STEP, client, str(error))
        self._number += 1  # a client answers a number that it knows with its old reply

    def too_few(self, step: str, count: str, missing: Iterable[int]) -> TooFewReplies:
        """The error of an exchange in which too few clients replied."""
        names = ", ".join(self.name(client) for client in sorted(missing))
        return TooFewReplies(f"round {self._round}, step {step}: {count}; none from {names}.")

    def discard_sent(self) -> None:
        """Ignore the replies to requests that were sent ahead."""
        self._sent_ahead.clear()

    def _skipped(
        self, step: str, requests: Mapping[int, Request], needed: int
    ) -> dict[int, Request]:
        """Slots whose clients are in back-off, if the others may suffice; reports them."""
        resting = self._backoff.clients()
        skipped = {slot: r for slot, r in requests.items() if r.client in resting}
        if len(requests) - len(skipped) < needed:
            return {}
        for client in {request.client for request in skipped.values()}:
            if self._skip_reported.get((step, client)) != self._round:
                self._skip_reported[step, client] = self._round
                self.report(step, client, "skipped in this round: backing off after a timeout")
        return skipped

    def _attempt(self, kind: Kind, step: str, state: Attempt, sent: Mapping[int, int]) -> None:
        state.restart()
        settled = set[int]()
        state.numbers = {slot: self._number for slot in state.pending} | state.numbers
        # a generator, so that the first message is on its way while the last is being built
        messages = (
            self._message(kind, step, slot, request, state.numbers[slot])
            for slot, request in list(state.pending.items())
            if slot not in sent
        )
        for slot, number in sent.items():
            client = state.requests[slot].client
            settled |= set(self._take_early(kind, step, client, number, state))
        outstanding = set(state.pending) - settled
        arrivals = self.port.exchange(step, messages, self.policy.wait_for)
        for client, arrival in arrivals if outstanding else ():
            outstanding -= set(self._take(kind, step, client, arrival, state))
            if not outstanding:
                break
        for slot in outstanding:
            state.failed[slot] = self._timeout()
            state.timed_out.add(slot)
        for slot in (*state.replies, *state.rejected):
            state.pending.pop(slot, None)
        self._content = None

    def _message(
        self, kind: Kind, step: str, slot: int, request: Request, number: int
    ) -> tuple[int, wire.Parts]:
        self._limits.extend(request)
        arrays = request.build()
        same = self._content  # often that of the last message too, but for the client
        if same is None or (same.kind, same.name) != (kind, step) or same.arrays is not arrays:
            same = self._content = wire.Content(kind, step, arrays)
        self.bytes_down += nbytes(arrays, "value")
        is_checked = not self.port.is_reliable
        return request.client, same.to(request.client, slot, number, is_checked=is_checked)

    def _take(
        self, kind: Kind, step: str, client: int, arrival: Data | Failure, state: Attempt
    ) -> Collection[int]:
        """Take what has arrived; returns the slots that need no longer be waited for."""
        if isinstance(arrival, Failure):
            return self._fail(client, arrival, state)
        try:
            message = wire.decode(arrival, self._limits.of(client))
            if message.client != client:
                raise WireError(f"it claims to be from client {message.client}")
            if message.exchange == 0 and message.kind is Kind.FAILURE:
                # a client that could not decode its request does not know the number either
                raise WireError(wire.decode_text(message.arrays.get("reason")))
        except WireError as error:
            return self._fail(client, Failure(f"reply rejected: {error}"), state)
        if (client, message.exchange) in self._sent_ahead:
            self._sent_ahead[client, message.exchange] = message
            return ()
        return self._take_reply(kind, step, client, message, state)

    def _take_early(
        self, kind: Kind, step: str, client: int, number: int, state: Attempt
    ) -> Collection[int]:
        """Take what arrived for a request sent ahead; from now on its reply is waited for."""
        early = self._sent_ahead.pop((client, number), None)
        if isinstance(early, Failure):
            return self._fail(client, early, state)
        return () if early is None else self._take_reply(kind, step, client, early, state)

    def _fail(self, client: int, failure: Failure, state: Attempt) -> Collection[int]:
        """Fail all pending requests of a client that is unreachable or whose reply is invalid."""
        for key, arrived in self._sent_ahead.items():
            if key[0] == client and arrived is None:
                self._sent_ahead[key] = failure
        slots = [
            slot
            for slot, request in state.pending.items()
            if request.client == client and slot not in state.replies
        ]
        state.failed |= dict.fromkeys(slots, failure.reason)
        state.timed_out.difference_update(slots)
        return slots

    def _timeout(self) -> str:
        return f"no reply within {self.policy.wait_for:g} s"

    def _take_reply(
        self, kind: Kind, step: str, client: int, message: Message, state: Attempt
    ) -> Collection[int]:
        """Accept or reject a reply; returns the slots that need no longer be waited for."""
        if message.exchange not in state.numbers.values():
            self.report(step, client, f"late reply dropped, to {message.name}")
            return ()
        slot, request = message.slot, state.requests.get(message.slot)
        is_expected = state.numbers.get(slot) == message.exchange and message.name == step
        if request is None or request.client != client or not is_expected:
            reason = f"reply rejected: it is for step {message.name}, slot {message.slot}"
            if not (slots := self._fail(client, Failure(reason), state)):
                self.report(step, client, reason)
            return slots
        if slot in state.replies:
            self.report(step, client, f"duplicate reply dropped, to {message.name}")
            return ()
        state.failed.pop(slot, None)
        state.timed_out.discard(slot)
        try:
            reply = self._checked(kind, message, request)
        except WireError as error:
            state.failed[slot] = str(error)
            if "refused" in message.arrays:  # asked again, the site would refuse again
                state.rejected.add(slot)
            lost = message.arrays.get("lost")
            if isinstance(lost, np.ndarray) and spec(lost) == "uint8[]" and lost > 0:
                state.lost[slot] = int(lost)
            return [slot]
        if request.is_counted:
            self.bytes_up += nbytes(message.arrays, "reply")
        limit = self.policy.largest_norm
        if not is_finite(reply.leaves):
            reason = "it holds NaN or infinity"
            if self._is_robust:
                self.report(step, client, f"{reason}; the robust rule decides about it")
            else:
                state.failed[slot] = f"reply rejected: {reason}"
                state.non_finite[slot] = reply
        elif not math.isinf(limit) and (size := norm(reply.leaves)) > limit:
            state.failed[slot] = (
                f"reply rejected: its norm is {size:.3g}, above Policy.largest_norm={limit:g}"
            )
        if slot in state.failed:
            state.rejected.add(slot)
        else:
            state.replies[slot] = reply
            self._backoff.end(client)
        return [slot]

    def _reject_outliers(self, step: str, state: Attempt) -> None:
        """Reject replies, and claims of work, out of all proportion to the other clients'."""
        ratio, replies = self.policy.largest_ratio, state.replies
        if math.isinf(ratio) or len(replies) < 3:
            return
        norms = {slot: norm(reply.leaves) for slot, reply in replies.items()}
        for slot, middle in outliers(norms, ratio).items():
            compared = f"its norm is {norms[slot]:.3g}, {_others(middle, ratio)}"
            if self._is_robust:
                client = state.requests[slot].client
                self.report(step, client, f"{compared}; the robust rule decides about it")
            else:
                self._reject(state, slot, compared)
        for i, kind in enumerate(KINDS):
            claims = {slot: float(reply.work[i]) for slot, reply in replies.items()}
            for slot, middle in outliers(claims, ratio).items():
                compared = f"{claims[slot]:.3g} {kind}, {_others(middle, ratio)}"
                self._reject(state, slot, f"it claims {compared}")

    def _reject(self, state: Attempt, slot: int, reason: str) -> None:
        del state.replies[slot]
        state.rejected.add(slot)
        state.failed[slot] = f"reply rejected: {reason}"

    def _checked(self, kind: Kind, message: Message, request: Request) -> Reply:
        if not (kind is Kind.HELLO and message.kind is Kind.HELLO):
            return read_reply(message, request, self._claimed_work)
        theirs = handshake.read(message.arrays)
        if differing := handshake.differences(self._configuration, theirs):
            raise handshake.HandshakeError(
                f"handshake with {self.name(request.client)}: its configuration differs from the "
                "server's. " + "; ".join(differing)
            )
        key = message.arrays.get(handshake.KEY)
        if isinstance(key, np.ndarray) and spec(key) == "uint8[32]":
            self.public_keys[request.client] = key.tobytes()
        return Reply([])


def _others(middle: float, ratio: float) -> str:
    return f"and the median of the others' is {middle:.3g}. Policy.largest_ratio={ratio:g}"
