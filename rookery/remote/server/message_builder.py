"""Messages to one client, made out of handles: what it has already is not sent again."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rookery.remote.protocol import instructions
from rookery.remote.protocol.instructions import Instruction, Instructions, Ref
from rookery.remote.server.remote_values import Computed, Copied, Recalled, RemoteValue, Sent

Change = tuple[int, int, list[Ref]]
"""A memory, the stamp of its new content, and the leaves that it consists of."""


@dataclass
class Holdings:
    """What the server knows its clients to have.

    Attributes:
        rows: of every memory, its leaves with a row per client, as last seen by the server.
        values: by client, the tokens of the values of this round that it has.
        carried: by client and token, which slot's message carries a value in this exchange.
        remembering: clients that have their memories.
        uncommitted: by client, changes of its memory that it has not confirmed yet.
        unseen: clients whose memory has changed since the server last saw it.
        errands: jobs that clients were sent and that have not arrived.
    """

    rows: list[list[Any]] = field(default_factory=list)
    values: dict[int, set[int]] = field(default_factory=dict)
    carried: dict[int, dict[int, int]] = field(default_factory=dict)
    remembering: set[int] = field(default_factory=set)
    uncommitted: dict[int, list[Change]] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)
    errands: dict[Any, Any] = field(default_factory=dict)
    tokens: Any = field(default_factory=lambda: count(1))
    stamps: Any = field(default_factory=lambda: count(1))

    def new_tokens(self, n: int) -> int:
        """The first of n tokens that were never used."""
        first = next(self.tokens)
        for _ in range(n - 1):
            next(self.tokens)
        return first


class MessageBuilder:
    """A message to the client in one slot, as it is put together.

    Args:
        holdings: what clients have; it is not changed before :meth:`confirm`.
        round: the number of the round.
        client: the client.
        slot: its slot.
        is_shared: whether the client may have other slots in this exchange, whose messages carry
            values for this one too.
    """

    def __init__(
        self, holdings: Holdings, round: int, client: int, slot: int, *, is_shared: bool = False
    ):
        self.arrays: dict[str, Any] = {}
        self._holdings = holdings
        self._carried = holdings.carried.setdefault(client, {}) if is_shared else {}
        self._client, self._slot = client, slot
        self._script = Instructions(round, commit=list(holdings.uncommitted.get(client, [])))
        self._new: set[int] = set()
        self._calls: list[str] = []
        self._refs: dict[int, Ref] = {}

    def give(self, handles: list[RemoteValue]) -> dict[str, Any]:
        """The arrays of a message that asks for some leaves."""
        self._script.give.extend([self.ref(handle, self._slot) for handle in handles])
        return {"script": instructions.write(self._script), **self.arrays}

    @property
    def step(self) -> str | None:
        """The step that the client has to run; None if it needs to be told nothing at all."""
        if self._calls:
            return self._calls[-1]
        return "memory" if self.arrays else None

    def ref(self, handle: RemoteValue, slot: int) -> Ref:
        """A leaf by its name; what is needed to have it there goes into the message."""
        source = handle.source
        if isinstance(source, Sent):
            return self._sent(source, slot), handle.leaf
        if isinstance(source, Computed):
            return self._computed(source, slot), handle.leaf
        if isinstance(source, Copied):
            if self._client in source.sent:
                return self.ref(source.sent[self._client][handle.leaf], slot)
            return self._sent(source.rows, self._client), handle.leaf
        if self._client in source.changed:
            handles, then = source.changed[self._client]
            return self.ref(handles[handle.leaf], then)
        self._memory(source)
        return -1 - source.memory, handle.leaf

    def confirm(self) -> None:
        """The client has answered, so it has all that the message brought."""
        holdings, client = self._holdings, self._client
        holdings.values.setdefault(client, set()).update(self._new)
        if self._script.remember:
            holdings.remembering.add(client)
        done = {stamp for _, stamp, _ in self._script.commit}
        left = [c for c in holdings.uncommitted.get(client, []) if c[1] not in done]
        holdings.uncommitted[client] = left

    def _has(self, token: int) -> bool:
        if token in self._new or token in self._holdings.values.get(self._client, ()):
            return True
        return self._carried.setdefault(token, self._slot) != self._slot

    def _sent(self, source: Sent, slot: int) -> int:
        token = source.token + slot if source.are_rows else source.token
        if not self._has(token):
            self._new.add(token)
            leaves = [leaf[slot] if source.are_rows else leaf for leaf in source.leaves]
            self._bring(token, leaves, "value" if source.is_billed else "row")
        return token

    def _bring(self, token: int, leaves: list[Any], kind: str) -> None:
        place = len(self._script.brought)
        self._script.brought.append(token)
        for i, leaf in enumerate(leaves):
            self.arrays[f"{kind}/{place}/{i}"] = leaf

    def _computed(self, source: Computed, slot: int) -> int:
        token = source.token + slot
        if not self._has(token):
            self._new.add(token)
            values = [self.ref(handle, slot) for handle in source.values]
            i = len(self._script.tasks)
            occurrence = -1 if source.occurrences is None else source.occurrences[slot]
            occurrence = instructions.OWN_KEY if source.has_own_key else occurrence
            self._script.tasks.append(Instruction(token, source.call.number, occurrence, values))
            self._calls.append(source.call.name)
            for j, number in enumerate(source.numbers):
                self.arrays[f"set/{i}/{j}"] = number
            if source.key is not None:
                self.arrays[f"key/{i}"] = source.key
        return token

    def _memory(self, source: Recalled) -> None:
        """All memories of a client that has none; it is not billed, being a part of resuming."""
        if self._client in self._holdings.remembering or self._script.remember:
            return
        for memory, leaves in enumerate(self._holdings.rows):
            token = self._holdings.new_tokens(1)
            self._bring(token, [leaf[self._client] for leaf in leaves], "row")
            refs = [(token, i) for i in range(len(leaves))]
            self._script.remember.append((memory, next(self._holdings.stamps), refs))
