"""Enforces a site's policy in the client's process, whatever the server says.

A worker asks its enforcer before it takes a request, before it runs a step and before a reply
leaves. Every answer is a line of the site's log. A refusal raises :class:`Refused`.
"""

import hashlib
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rookery.clients.population import Population
from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.client import site_log
from rookery.remote.client.site_log import SiteLog
from rookery.remote.client.site_policy import Refused, SitePolicy
from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import Plan, spec
from rookery.remote.protocol.wire import Arrays, Leaf

KEY = "site.key"
"""The file with the site's secret key, in the site's folder."""

_HOUR = 3600.0


class Enforcer:
    """The policy of a site at work; all clients of the site share it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     enforcer = Enforcer(SitePolicy(largest_incoming_norm=1.0), folder)
    ...     enforcer.check_incoming({"value/0/0": np.array([3.0, 4.0])})
    Traceback (most recent call last):
    rookery.remote.client.site_policy.Refused: the request's norm is above largest_incoming_norm = 1

    Args:
        policy: the limits.
        folder: the site's own folder, for its log and its secret key. Requests and epsilon that an
            earlier process has logged there are counted too.
    """

    def __init__(self, policy: SitePolicy, folder: str | Path):
        self.policy = policy
        self.log = SiteLog(folder)
        self._secret = _secret_key(Path(folder) / KEY) if policy.mix_keys else b""
        self._noise = np.random.Generator(np.random.Philox(secrets.randbits(128)))
        self._lock = threading.Lock()
        self._rho = site_log.spent(self.log.file)
        recent = site_log.request_times(self.log.file, time.time() - _HOUR)
        self._requests = {client: deque(times) for client, times in recent.items()}

    # ---- what comes in

    def objection(
        self, algorithm: AbstractAlgorithm, plan: Plan, population: Population, client: int
    ) -> str | None:
        """Why the site takes no part in a program at all; None if it does.

        Args:
            algorithm: the client's own.
            plan: the steps of a round.
            population: has the client's rows.
            client: the client's number.
        """
        name, allowed = type(algorithm).__name__, self.policy.algorithms
        if allowed and name not in allowed:
            return f"algorithm {name} is not among those allowed, {', '.join(allowed)}"
        if algorithm.shows_rows and self.policy.min_rows > 1:
            return (
                f"algorithm {name} uploads numbers of single rows, and min_rows = "
                f"{self.policy.min_rows}"
            )
        if not self.policy.whole_numbers and (step := _step_with_whole_numbers(plan)) is not None:
            return f"step {step} uploads whole numbers, and whole_numbers = false"
        place = int(population.place(client))
        for call in plan.calls:
            for split, size, batches in sorted(call.draws, key=str):
                count = int(population.counts[population.split_index(split), place])
                rows = min(count if size is None else size, count // batches)
                if rows < self.policy.min_rows:
                    return (
                        f"step {call.name} averages fewer rows of split {split} than "
                        f"min_rows = {self.policy.min_rows}"
                    )
        return None

    def check_size(self, nbytes: int) -> None:
        """Refuse a message that is too large, in either direction."""
        if nbytes > self.policy.largest_message:
            raise Refused(
                f"the message has {nbytes} bytes, above largest_message = "
                f"{self.policy.largest_message}"
            )

    def count_request(self, client: int) -> None:
        """Refuse a request beyond those of an hour."""
        now, limit = time.time(), self.policy.requests_per_hour
        with self._lock:
            times = self._requests.setdefault(client, deque())
            while times and times[0] < now - _HOUR:
                times.popleft()
            is_full = len(times) >= limit
            if not is_full:
                times.append(now)
        if is_full:
            raise Refused(f"more requests than requests_per_hour = {limit}")

    def check_incoming(self, arrays: Arrays) -> None:
        """Refuse values that are too long or not finite."""
        limit = self.policy.largest_incoming_norm
        if limit < math.inf and not _norm(arrays.values()) <= limit:
            raise Refused(f"the request's norm is above largest_incoming_norm = {limit:g}")

    def check_steps(self, steps: int) -> None:
        """Refuse a request to run too many steps."""
        if steps > self.policy.most_local_iterations:
            raise Refused(
                f"the request has {steps} steps, above most_local_iterations = "
                f"{self.policy.most_local_iterations}"
            )

    def check_memory(self, nbytes: int) -> None:
        """Refuse to keep more bytes of values than the site has room for."""
        if nbytes > self.policy.memory:
            raise Refused(f"the values to keep exceed memory = {self.policy.memory} bytes")

    def mixed(self, client: int, key: wire.Keys, inputs: Sequence[Leaf] = ()) -> wire.Keys:
        """The key to draw with: a keyed hash of the server's, if the policy says so.

        Equal keys stay equal and others independent, as algorithms need them; which rows a key
        draws is known only to those who have the site's secret.

        Args:
            client: the client's number.
            key: the server's.
            inputs: what a step is given, if its noise comes from the key. A server that sends one
                key twice, with different values, would otherwise see the same noise twice, and
                subtract it.
        """
        if not self.policy.mix_keys:
            return key
        words = np.asarray(key.words)
        said = hashlib.blake2b(key=self._secret, digest_size=words.nbytes)
        said.update(f"{client}/{key.impl}/".encode() + words.astype("<u4").tobytes())
        for leaf in inputs:
            array = np.asarray(leaf.words if isinstance(leaf, wire.Keys) else leaf)
            said.update(f"/{spec(array)}/".encode() + array.tobytes())
        return wire.Keys(key.impl, np.frombuffer(said.digest(), "<u4").astype(np.uint32))

    # ---- what goes out

    def released(
        self, client: int, step: str, leaves: Sequence[Leaf], anchors: Sequence[Leaf | None]
    ) -> tuple[list[Leaf], float | None]:
        """A reply as it may leave: clipped and noised; and its cost in zCDP, None if unknown.

        With noise, whether a reply is refused does not depend on the client's rows: the refusal
        would tell about them without noise. A reply that is not finite leaves as noise alone.

        Args:
            client: the client's number.
            step: the step's name, for the log.
            leaves: the reply.
            anchors: for each leaf the value that was sent and that the client has moved away from,
                or None. The way from there is clipped.
        """
        policy = self.policy
        if math.isinf(policy.clip):
            self._check_outgoing(_norm(leaves))
            return [*leaves], None
        floats = [i for i, leaf in enumerate(leaves) if _is_inexact(leaf)]
        rho = policy.rho if len(floats) == len(leaves) else None
        if leaves:
            self._check_epsilon(client, rho)
        base = {i: np.float64(0) if (at := anchors[i]) is None else _wide(at) for i in floats}
        self._check_outgoing(_norm(base.values()) + policy.clip)
        ways = {i: _wide(leaves[i]) - base[i] for i in floats}
        length = _norm(ways.values())
        if not math.isfinite(length):
            if policy.noise == 0:
                raise Refused("the reply is not finite")
            self.log.append("not_finite", client=client, step=step)
            ways, length = {i: np.zeros_like(way) for i, way in ways.items()}, 0.0
        scale = min(1.0, policy.clip / length) if length > 0 else 1.0
        out = [*leaves]
        with self._lock:  # the generator is not safe for threads
            noise = {i: self._drawn(ways[i]) for i in floats}
        for i in floats:
            changed = base[i] + scale * ways[i] + policy.noise * policy.clip * noise[i]
            out[i] = np.asarray(changed).astype(leaves[i].dtype)
        return out, rho

    def sent(
        self, client: int, step: str, leaves: Sequence[Leaf], nbytes: int, rho: float | None
    ) -> None:
        """Log a reply that is about to leave."""
        if leaves:
            with self._lock:
                before = self._rho.get(client, 0.0)
                self._rho[client] = total = before + (math.inf if rho is None else rho)
        else:
            total = math.inf
        epsilon = self.policy.epsilon(total) if math.isfinite(total) else None
        self.log.append(
            "sent", client=client, step=step, shapes=[spec(leaf) for leaf in leaves],
            norm=_norm(leaves), bytes=nbytes, rho=rho, epsilon=epsilon,
        )  # fmt: skip

    def repeated(self, client: int, step: str, nbytes: int) -> None:
        """Log a reply that leaves once more, as it was."""
        self.log.append("repeated", client=client, step=step, bytes=nbytes)

    def refused(self, client: int, step: str, reason: str) -> None:
        """Log a refusal."""
        self.log.append("refused", client=client, step=step, reason=reason)

    def failed(self, client: int, step: str, reason: str) -> None:
        """Log that the server is told why a request failed."""
        self.log.append("failed", client=client, step=step, reason=reason)

    def error(self, client: int, step: str, error: Exception) -> str:
        """Log an error with its text; returns what the server may know of it."""
        return self.log.error(step, error, client=client)

    def _check_epsilon(self, client: int, rho: float | None) -> None:
        limit = self.policy.largest_epsilon
        if math.isinf(limit):
            return
        with self._lock:
            total = self._rho.get(client, 0.0) + (math.inf if rho is None else rho)
        if not self.policy.epsilon(total) <= limit:
            raise Refused(f"one more reply would exceed largest_epsilon = {limit:g}")

    def _check_outgoing(self, norm: float) -> None:
        limit = self.policy.largest_outgoing_norm
        if limit < math.inf and not norm <= limit:
            raise Refused(f"the reply's norm is above largest_outgoing_norm = {limit:g}")

    def _drawn(self, like: np.ndarray) -> np.ndarray:
        """Noise of unit variance; of unit variance in each part of complex numbers."""
        noise = self._noise.standard_normal(like.shape)
        if np.iscomplexobj(like):
            return noise + 1j * self._noise.standard_normal(like.shape)
        return noise


def _secret_key(file: Path) -> bytes:
    """The site's secret key, made when it is first needed; only its owner can read it."""
    try:
        made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        secret = file.read_bytes()
        if len(secret) != 32:
            raise ValueError(
                f"{file} must hold 32 bytes, the site's secret key, got {len(secret)}. Delete "
                "it to have a new one made."
            ) from None
        return secret
    with os.fdopen(made, "wb") as new:
        secret = secrets.token_bytes(32)
        new.write(secret)
        new.flush()
        os.fsync(new.fileno())
    return secret


def _step_with_whole_numbers(plan: Plan) -> str | None:
    """A step whose uploads are not floating-point numbers alone."""
    for number, leaf in sorted(plan.flow.uploaded):
        call = plan.calls[number]
        if not jnp.issubdtype(jax.tree.leaves(call.reply)[leaf].dtype, jnp.inexact):
            return call.name
    return None


def _wide(leaf: Leaf) -> np.ndarray:
    """A floating-point array with 64 bits for each number."""
    array = np.asarray(leaf)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _norm(leaves) -> float:
    """The Euclidean norm over all floating-point numbers; NaN and infinity count as they are."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for leaf in leaves:
            if _is_inexact(leaf):
                flat = np.abs(_wide(leaf)).ravel()
                total += float(flat @ flat)
    return math.sqrt(total)


def _is_inexact(leaf: Leaf) -> bool:
    # NumPy does not count bfloat16 as a floating-point type
    # arithmetic on arrays without axes gives NumPy's scalars
    is_array = isinstance(leaf, np.ndarray | np.generic | jax.Array)
    return is_array and jnp.issubdtype(leaf.dtype, jnp.inexact)
