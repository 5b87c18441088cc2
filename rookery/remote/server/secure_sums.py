"""The server's side of secure aggregation: sums of replies that it never sees one by one.

Three exchanges with the clients of a cohort make one sum; see
:mod:`rookery.remote.protocol.secure`. A client that drops out before its masked reply has arrived
is missing from the sum, and the others' masks for it are restored from its shares. One that drops
out later is in the sum.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from rookery.remote.protocol import masks, shamir
from rookery.remote.protocol.secure import FEWEST, SecureAggregation
from rookery.remote.protocol.wire import Arrays, Kind
from rookery.remote.server.requests import Reply, Request, TooFewReplies
from rookery.remote.server.session import Session

KEYS, UNMASK = "secure keys", "secure unmasking"
"""Names of the exchanges before and after the masked replies, in messages and events."""


class WantedSum(NamedTuple):
    """What is summed over a cohort.

    Attributes:
        step: name of the step.
        requests: by slot; each client in one slot.
        like: types and shapes of the leaves of a reply.
        weights: by slot, a factor on the reply; None means one.
    """

    step: str
    requests: Mapping[int, Request]
    like: Sequence[jax.ShapeDtypeStruct]
    weights: Mapping[int, float] | None


class _Restarted(Exception):
    """A client has lost its keys and has new ones: with those it can take part."""


class SecureSums:
    """Secure sums over a session.

    Args:
        session: the session; its handshake collects the clients' public keys.
        secure: the settings; clients have the same.
    """

    def __init__(self, session: Session, secure: SecureAggregation):
        self._session, self._secure = session, secure
        self._numbers = itertools.count(time.time_ns())

    def total(
        self, wanted_sum: WantedSum, *, needs_all: bool
    ) -> tuple[list[np.ndarray], dict[int, Reply]]:
        """The leaves of a sum, and the masked replies that are in it, by slot.

        Args:
            wanted_sum: what is summed.
            needs_all: whether every slot must reply, whatever the policy.
        """
        step, requests, _, _ = wanted_sum
        n, policy = len(requests), self._session.policy
        if n < FEWEST:
            raise TooFewReplies(
                f"round {self._session.round}, step {step}: a cohort of {n} cannot hide a reply; "
                f"secure aggregation needs at least {FEWEST} clients."
            )
        threshold = self._secure.needed(n)
        needed = n if needs_all else max(policy.needed(n), threshold, FEWEST)
        for _ in range(1 + policy.retries):
            known = self._session.public_keys
            keys = {slot: known[r.client] for slot, r in requests.items() if r.client in known}
            try:
                return self._once(wanted_sum, keys, needed)
            except _Restarted:
                continue
            except TooFewReplies as error:
                raise TooFewReplies(
                    f"{error} Secure aggregation needs {threshold} of {n} clients at least "
                    f"(threshold={self._secure.threshold:g}) until the masks are removed."
                ) from error
        raise TooFewReplies(
            f"round {self._session.round}, step {step}: clients were restarted in each of "
            f"{1 + policy.retries} attempts."
        )

    def _once(
        self, wanted_sum: WantedSum, keys: Mapping[int, bytes], needed: int
    ) -> tuple[list[np.ndarray], dict[int, Reply]]:
        """One attempt, with fresh keys; raises :class:`_Restarted` if a client has lost its own.

        A client whose handshake is still missing has no key here. It has one when it is asked
        again, after the handshake.
        """
        step, requests, like, weights = wanted_sum
        session, client = self._session, {slot: r.client for slot, r in requests.items()}
        number = np.array(next(self._numbers), np.uint64)
        threshold = self._secure.needed(len(keys))

        def asked(slots: Sequence[int], arrays: Mapping[str, np.ndarray]) -> Arrays:
            ids = np.array([client[slot] for slot in slots], np.uint32)
            return {"secure/number": number, "secure/clients": ids, **arrays}

        def with_keys(slot: int, build: Callable[[], Arrays]) -> Arrays:
            if session.public_keys.get(client[slot]) != keys.get(slot):
                raise _Restarted
            return build()

        # every client's public keys of this exchange, and the shares that it has sealed
        all_keys = asked([*keys], {"secure/keys": _rows(keys.values(), masks.KEY_BYTES)})
        wanted = [f"uint8[2, {masks.KEY_BYTES}]", f"uint8[{len(keys)}, {masks.SEALED_BYTES}]"]
        prepared = session.exchange(
            KEYS,
            {
                slot: _request(client[slot], partial(with_keys, slot, lambda: all_keys), wanted)
                for slot in requests
            },
            kind=Kind.KEYS,
            needed=needed,
        )
        members = [slot for slot in keys if slot in prepared]
        public = {slot: [row.tobytes() for row in prepared[slot].leaves[0]] for slot in members}
        of_masks = _rows([mask for mask, _ in public.values()], masks.KEY_BYTES)

        # the masked replies
        size = sum(int(np.prod(leaf.shape)) for leaf in like)
        place = {slot: row for row, slot in enumerate(keys)}

        def masked(slot: int) -> Request:
            sealed = np.stack([prepared[m].leaves[1][place[slot]] for m in members])
            arrays = {"secure/keys": of_masks, "secure/shares": sealed}
            if weights is not None:
                arrays["secure/weight"] = np.array(weights[slot], np.float64)
            extra, build = asked(members, arrays), requests[slot].build
            return replace(
                requests[slot],
                build=partial(with_keys, slot, lambda: {**build(), **extra}),
                wanted=[f"{self._secure.dtype}[{size}]"],
            )

        replies = session.exchange(step, {slot: masked(slot) for slot in members}, needed=needed)
        total = np.zeros(size, self._secure.dtype)
        for reply in replies.values():
            total += reply.leaves[0]

        # one share of every member from the survivors
        survivors = [slot for slot in members if slot in replies]
        question = asked(survivors, {})
        wanted = [f"uint8[{len(members)}, {shamir.SHARE_BYTES}]"]
        revealed = session.exchange(
            UNMASK,
            {slot: _request(client[slot], lambda: question, wanted) for slot in survivors},
            kind=Kind.UNMASK,
            needed=threshold,
        )
        holders = sorted(revealed)[:threshold]
        for row, slot in enumerate(members):
            shares = {
                shamir.point(client[holder]): revealed[holder].leaves[0][row].tobytes()
                for holder in holders
            }
            own, self_mask = public[slot]
            if slot in replies:
                secret = self._restored(shares, self_mask, client[slot])
                total -= masks.self_mask(secret, size, total.dtype)
                continue
            secret = self._restored(shares, own, client[slot])
            for other in survivors:  # the masks that the survivors have added for it
                pair = masks.pair_mask(secret, public[other][0], size, total.dtype)
                total -= pair if client[other] < client[slot] else np.negative(pair)
        return self._secure.decode(total, like), replies

    def _restored(self, shares: Mapping[int, bytes], public: bytes, client: int) -> bytes:
        """The secret of shares; raises unless it belongs to the public key."""
        try:
            secret = shamir.combine(shares)
        except ValueError:
            secret = None
        if secret is None or masks.public_of(secret) != public:
            raise TooFewReplies(
                f"round {self._session.round}, {UNMASK}: the shares of "
                f"{self._session.name(client)} do not restore its key: some client has sent a "
                "wrong share."
            )
        return secret


def _request(client: int, build: Callable[[], Arrays], wanted: list[str]) -> Request:
    return Request(client, build, wanted, is_counted=False)


def _rows(values: Iterable[bytes], size: int) -> np.ndarray:
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, size)
