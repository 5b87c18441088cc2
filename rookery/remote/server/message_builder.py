"""Builds the message to one client: it carries only what the client does not have."""

from collections.abc import Hashable, Sequence

from rookery.remote.protocol import instructions
from rookery.remote.protocol.instructions import NO_OCCURRENCE, OWN_KEY, Instruction, Ref
from rookery.remote.protocol.plan import Call
from rookery.remote.protocol.wire import Leaf
from rookery.remote.server.client_record import ClientRecords
from rookery.remote.server.remote_values import Computed, Copied, RemoteValue, Sent


class Messages:
    """The messages of one exchange, which request the same leaves of every slot.

    Clients that have the same values, and are sent none of their own, get the same arrays. These
    are made once.

    Args:
        records: what clients have; unchanged before :meth:`confirm`.
        round: number of the round.
        values: the requested leaves.
    """

    def __init__(self, records: ClientRecords, round: int, values: list[RemoteValue]):
        records.new_exchange()
        self._records, self._round, self._values = records, round, values
        self._are_common = all(map(_is_common, values))
        self._common: dict[Hashable, tuple[MessageBuilder, dict[str, Leaf]]] = {}
        self._builders: dict[int, tuple[MessageBuilder, int]] = {}

    def build(self, slot: int, client: int) -> dict[str, Leaf]:
        """The arrays of the message to the client in a slot."""
        holdings = self._records[client].holdings() if self._are_common else None
        if holdings in self._common:
            builder, arrays = self._common[holdings]
        else:
            builder = MessageBuilder(self._records, self._round, client, slot, may_split=True)
            arrays = builder.request(self._values)
            if holdings is not None:
                self._common[holdings] = builder, arrays
        self._builders[slot] = builder, client
        return arrays

    def calls(self, slot: int) -> Sequence[Call]:
        """The steps in the last message that was built for a slot."""
        return self._builders[slot][0].calls

    def confirm(self, slot: int) -> None:
        """A slot has replied."""
        builder, client = self._builders[slot]
        builder.confirm(client)


class MessageBuilder:
    """A request to the client in one slot, under construction.

    Args:
        records: what clients have; unchanged before :meth:`confirm`.
        round: number of the round.
        client: the client.
        slot: its slot.
        may_split: whether messages to other slots of the same client in this exchange may carry
            values for this one.

    Attributes:
        calls: the steps that the client is to run.
    """

    def __init__(
        self, records: ClientRecords, round: int, client: int, slot: int, *, may_split: bool = False
    ):
        self._records, self._record = records, records[client]
        self._client, self._slot, self._may_split = client, slot, may_split
        self._arrays: dict[str, Leaf] = {}
        self._instructions = instructions.Instructions(
            round, commit=list(self._record.unconfirmed_changes)
        )
        self._new: set[int] = set()
        self.calls: list[Call] = []

    def request(self, values: list[RemoteValue]) -> dict[str, Leaf]:
        """The arrays of a message that requests some leaves."""
        self._instructions.reply.extend([self.ref(value, self._slot) for value in values])
        return {**instructions.write(self._instructions), **self._arrays}

    @property
    def step(self) -> str | None:
        """The step that the client has to run; None if there is nothing to send."""
        if self.calls:
            return self.calls[-1].name
        return "memory" if self._arrays else None

    def ref(self, value: RemoteValue, slot: int) -> Ref:
        """Reference to a leaf; adds to the message whatever the client needs to have it."""
        source = value.source
        if isinstance(source, Sent):
            return self._sent(source, slot), value.leaf
        if isinstance(source, Computed):
            return self._computed(source, slot), value.leaf
        if isinstance(source, Copied):
            if self._client in source.sent:
                return self.ref(source.sent[self._client][value.leaf], slot)
            return self._sent(source.rows, self._client), value.leaf
        if self._client in source.changed:
            values, changed_in = source.changed[self._client]
            return self.ref(values[value.leaf], changed_in)
        self._restore_memory()
        return -1 - source.memory, value.leaf

    def confirm(self, client: int | None = None) -> None:
        """The client has replied, so it has everything that the message carried.

        Args:
            client: another client, if the message was sent to that one too.
        """
        record = self._record if client is None else self._records[client]
        record.confirmed(
            self._new, self._instructions.commit, has_memory=bool(self._instructions.restore)
        )

    def _has(self, token: int) -> bool:
        if token in self._new or self._record.has(token):
            return True
        return self._may_split and self._record.is_carried(token, self._slot)

    def _sent(self, source: Sent, slot: int) -> int:
        token = source.token + slot if source.are_rows else source.token
        if not self._has(token):
            self._new.add(token)
            leaves = [leaf[slot] if source.are_rows else leaf for leaf in source.leaves]
            self._add(token, leaves, "value" if source.is_counted else "row")
        return token

    def _add(self, token: int, leaves: Sequence[Leaf], kind: str) -> None:
        place = len(self._instructions.tokens)
        self._instructions.tokens.append(token)
        for i, leaf in enumerate(leaves):
            self._arrays[f"{kind}/{place}/{i}"] = leaf

    def _computed(self, source: Computed, slot: int) -> int:
        occurrence = NO_OCCURRENCE if source.occurrences is None else source.occurrences[slot]
        token = source.token + max(occurrence, 0)  # the client's own: others may have the same
        if not self._has(token):
            self._new.add(token)
            arguments = [self.ref(value, slot) for value in source.arguments]
            i = len(self._instructions.steps)
            occurrence = OWN_KEY if source.has_own_key else occurrence
            step = Instruction(token, source.call.number, occurrence, arguments)
            self._instructions.steps.append(step)
            self.calls.append(source.call)
            for j, setting in enumerate(source.settings):
                self._arrays[f"setting/{i}/{j}"] = setting
            if source.key is not None:
                self._arrays[f"key/{i}"] = source.key
        return token

    def _restore_memory(self) -> None:
        """Add all memories if the client has none. Not counted: it is a part of resuming."""
        if self._record.has_memory or self._instructions.restore:
            return
        for number, leaves in enumerate(self._records.memories):
            token = self._records.new_tokens()
            self._add(token, [leaf[self._client] for leaf in leaves], "row")
            refs = [(token, i) for i in range(len(leaves))]
            self._instructions.restore.append((number, self._records.new_stamp(), refs))


def _is_common(value: RemoteValue) -> bool:
    """Whether all clients get or make a leaf in the same way, and none stands in two slots."""
    source = value.source
    if isinstance(source, Sent):
        return not source.are_rows
    if isinstance(source, Computed):
        return source.occurrences is None and all(map(_is_common, source.arguments))
    return False
