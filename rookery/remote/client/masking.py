"""The client's side of secure aggregation: makes keys, masks one reply, reveals shares.

The client trusts the server to carry messages, not to ask for the right things: it checks that a
mask is used once, that a cohort is not smaller than its own settings allow, and that it reveals one
share of every client at most. See :mod:`rookery.remote.protocol.secure`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rookery.remote.protocol import masks, shamir
from rookery.remote.protocol.plan import spec
from rookery.remote.protocol.secure import FEWEST, SecureAggregation
from rookery.remote.protocol.wire import Arrays, WireError


class KeysLost(LookupError):
    """The server refers to keys that this client no longer has; a handshake makes new ones."""


@dataclass
class _Exchange:
    """What the client knows of one exchange.

    Attributes:
        number: the server's number of it.
        keys: by client, its public key of the handshake.
        mask, self_mask: the private keys of this exchange.
        shares: by client, its two shares for this client.
        members: the clients whose masks are in the sum.
        masked: the masked reply.
        survivors: clients whose shares of self-masks were revealed.
    """

    number: int
    keys: dict[int, bytes]
    mask: bytes = field(default_factory=masks.new_private)
    self_mask: bytes = field(default_factory=masks.new_private)
    shares: dict[int, bytes] = field(default_factory=dict)
    members: tuple[int, ...] = ()
    masked: np.ndarray | None = None
    survivors: tuple[int, ...] = ()


class Masking:
    """The secrets of one client, for the current exchange.

    Args:
        id: the client's number.
        secure: the client's own settings.
    """

    def __init__(self, id: int, secure: SecureAggregation):
        masks.require()
        self._id, self._secure = id, secure
        self._private = masks.new_private()  # of the handshake; others seal shares with it
        self._now: _Exchange | None = None

    def prepare(self, arrays: Arrays) -> list[np.ndarray]:
        """Begin an exchange: two fresh public keys, and sealed shares for all clients in it."""
        clients = _clients(arrays)
        keys = dict(zip(clients, _rows(arrays, "keys", len(clients), masks.KEY_BYTES), strict=True))
        if keys.get(self._id) != masks.public_of(self._private):
            raise KeysLost("the key that the server has of it")
        if len(keys) < FEWEST:
            raise WireError(f"{len(keys)} clients are too few to hide a reply among them.")
        now = self._now = _Exchange(_number(arrays), keys)
        points = [shamir.point(client) for client in keys]
        threshold = self._secure.needed(len(keys))
        pairs = zip(
            shamir.split(now.mask, points, threshold),
            shamir.split(now.self_mask, points, threshold),
            strict=True,
        )
        shares = dict(zip(keys, (a + b for a, b in pairs), strict=True))
        now.shares[self._id] = shares.pop(self._id)
        sealed = np.zeros((len(keys), masks.SEALED_BYTES), np.uint8)  # nothing for itself
        for row, client in enumerate(keys):
            if client in shares:
                context = _context(now.number, self._id, client)
                text = masks.seal(self._seal_key(client), shares[client], context)
                sealed[row] = np.frombuffer(text, np.uint8)
        public = masks.public_of(now.mask) + masks.public_of(now.self_mask)
        return [np.frombuffer(public, np.uint8).reshape(2, masks.KEY_BYTES), sealed]

    def mask(self, arrays: Arrays, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """The masked reply. Asked again, the client sends the same: one mask hides one reply."""
        now = self._current(arrays)
        if now.masked is not None:
            return now.masked
        members = _clients(arrays)
        if not set(members) <= now.keys.keys() or self._id not in members:
            raise WireError("the sum has clients that were not asked for keys, or not this one.")
        if len(members) < max(FEWEST, self._secure.needed(len(now.keys))):
            raise WireError(f"{len(members)} clients are too few for the threshold.")
        public = _rows(arrays, "keys", len(members), masks.KEY_BYTES)
        sealed = _rows(arrays, "shares", len(members), masks.SEALED_BYTES)
        for client, text in zip(members, sealed, strict=True):
            if client != self._id:
                context = _context(now.number, client, self._id)
                now.shares[client] = masks.opened(self._seal_key(client), text, context)
        total = self._secure.encode(leaves, _weight(arrays), len(members))
        total += masks.self_mask(now.self_mask, total.size, total.dtype)
        for client, key in zip(members, public, strict=True):
            if client != self._id:
                pair = masks.pair_mask(now.mask, key, total.size, total.dtype)
                total += pair if self._id < client else np.negative(pair)
        now.members, now.masked = members, total
        return total

    def reveal(self, arrays: Arrays) -> np.ndarray:
        """One share of every member: of its self-mask if it survived, otherwise of its mask."""
        now = self._current(arrays)
        survivors = _clients(arrays)
        if now.masked is None or not set(survivors) <= set(now.members):
            raise WireError("the survivors are not among the clients of the sum.")
        if len(survivors) < self._secure.needed(len(now.keys)):
            raise WireError(f"{len(survivors)} survivors are fewer than the threshold.")
        if now.survivors not in ((), survivors):
            raise WireError("shares were revealed for other survivors before.")
        now.survivors = survivors
        size = shamir.SHARE_BYTES
        shares = b"".join(
            now.shares[client][size:] if client in survivors else now.shares[client][:size]
            for client in now.members
        )
        return np.frombuffer(shares, np.uint8).reshape(-1, size)

    def renew(self) -> np.ndarray:
        """Drop the exchange and make another key of the handshake; returns the public one.

        By its new key the server sees that this client cannot finish the exchange.
        """
        self._private, self._now = masks.new_private(), None
        return np.frombuffer(masks.public_of(self._private), np.uint8)

    def _current(self, arrays: Arrays) -> _Exchange:
        if self._now is None or self._now.number != _number(arrays):
            raise KeysLost("keys for this exchange")
        return self._now

    def _seal_key(self, client: int) -> bytes:
        assert self._now is not None
        return masks.agreed(self._private, self._now.keys[client], "shares")


def _context(number: int, sender: int, receiver: int) -> bytes:
    return f"{number} {sender} {receiver}".encode()


def _number(arrays: Arrays) -> int:
    number = arrays.get("secure/number")
    if not isinstance(number, np.ndarray) or spec(number) != "uint64[]":
        raise WireError("the request lacks the number of a secure exchange.")
    return int(number)


def _weight(arrays: Arrays) -> float | None:
    weight = arrays.get("secure/weight")
    if weight is None:
        return None
    if not isinstance(weight, np.ndarray) or spec(weight) != "float64[]":
        raise WireError("the weight of a secure mean is one number.")
    return float(weight)


def _clients(arrays: Arrays) -> tuple[int, ...]:
    clients = arrays.get("secure/clients")
    if not isinstance(clients, np.ndarray) or clients.ndim != 1 or clients.dtype != np.uint32:
        raise WireError("the request lacks the clients of a secure exchange.")
    if len(set(clients.tolist())) != clients.size:
        raise WireError("a client is twice in a secure exchange.")
    return tuple(clients.tolist())


def _rows(arrays: Arrays, name: str, rows: int, size: int) -> list[bytes]:
    array = arrays.get(f"secure/{name}")
    if not isinstance(array, np.ndarray) or spec(array) != f"uint8[{rows}, {size}]":
        raise WireError(f"the request lacks {name} for {rows} clients.")
    return [row.tobytes() for row in array]
