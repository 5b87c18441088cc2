"""Secure aggregation: the server learns sums of replies, and no single reply.

K. Bonawitz et al. Practical secure aggregation for privacy-preserving machine learning. CCS 2017.
Clients turn replies into fixed-point integers modulo 2^bits, and add masks that cancel in the sum:

    y_i = x_i + PRG(b_i) + Σ_{j > i} PRG(k_ij) - Σ_{j < i} PRG(k_ij)    modulo 2^bits

An exchange takes three messages to every client. They go through the server, which cannot read what
clients seal for each other.

    message    the client's reply
    KEYS       two fresh public keys, and Shamir shares of both secrets, sealed for the others
    RUN        y_i
    UNMASK     of every client one share: of b_i if its y_i has arrived, otherwise of the secret
               behind its k_ij

``t`` shares restore a secret. So the server can remove the masks of all clients, but never both
masks of one. Clients check what the server asks for: a mask is used once, and only one kind of
share of a client is ever revealed. docs/secure-aggregation.md has the threat model.

Here are the settings and the fixed-point numbers. The keys and streams are in
:mod:`rookery.remote.protocol.masks`, the two sides of the protocol in
:mod:`rookery.remote.client.masking` and :mod:`rookery.remote.server.secure_sums`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rookery import check

FEWEST = 3
"""The smallest cohort: of two clients each could compute the other's reply from the sum."""


@dataclass(frozen=True, kw_only=True)
class SecureAggregation:
    """Means and sums of which the server sees no single reply; a setting of the remote engine.

    It needs ``pip install -e '.[secure]'`` on the server and on the clients. Rounding moves a mean
    by at most n / 2^(fraction_bits + 1) for n clients.

    >>> secure = SecureAggregation(threshold=0.8)
    >>> secure.needed(10), secure.largest(10)
    (8, 134217728.0)

    Args:
        threshold: the fraction of a cohort that must stay until the masks are removed, above one
            half; rounded up. As many clients would have to collude with the server to learn the
            reply of another.
        bits: of a masked integer, 32 or 64.
        fraction_bits: how many of them are after the binary point; half of them if None. What is
            before the point has to hold the sum; see :meth:`largest`.
    """

    threshold: float = 2 / 3
    bits: int = 64
    fraction_bits: int | None = None

    def __post_init__(self):
        if not 0.5 < self.threshold <= 1:
            raise ValueError(
                f"SecureAggregation.threshold must be above 0.5 and at most 1, got "
                f"{self.threshold}. Half of a cohort could be asked for one kind of share, and the "
                "other half for the other."
            )
        if self.bits not in (32, 64):
            raise ValueError(f"SecureAggregation.bits must be 32 or 64, got {self.bits}.")
        if self.fraction_bits is not None:
            check.count("SecureAggregation.fraction_bits", self.fraction_bits, least=0)
            if self.fraction_bits > self.bits - 2:
                raise ValueError(
                    f"SecureAggregation.fraction_bits must be at most {self.bits - 2} with "
                    f"bits={self.bits}, got {self.fraction_bits}."
                )

    @property
    def scale(self) -> float:
        """The integer that stands for 1."""
        return 2.0 ** (self.bits // 2 if self.fraction_bits is None else self.fraction_bits)

    @property
    def dtype(self) -> np.dtype:
        """The type of masked integers."""
        return np.dtype(np.uint64 if self.bits == 64 else np.uint32)

    def needed(self, n_clients: int) -> int:
        """How many clients of a cohort must stay: the threshold of the secret sharing."""
        return max(2, math.ceil(self.threshold * n_clients - 1e-9))

    def largest(self, n_clients: int) -> float:
        """Entries of a reply, times the client's weight, must be smaller than this."""
        return self._limit(n_clients) / self.scale

    def encode(
        self, leaves: Sequence[np.ndarray], weight: float | None, n_clients: int
    ) -> np.ndarray:
        """The integers of a reply, all leaves in one.

        >>> SecureAggregation(bits=32).encode([np.array([0.5, -1.0])], None, n_clients=3)
        array([     32768, 4294901760], dtype=uint32)

        Args:
            leaves: of the reply, floating-point numbers or integers. Integers are exact.
            weight: a factor on the reply, for floating-point leaves alone; None means one.
            n_clients: how many replies are summed.

        Raises:
            OverflowError: if an entry is not finite, or too large.
        """
        limit = self._limit(n_clients)
        parts = [np.zeros(0, np.int64)]
        for leaf in leaves:
            if jnp.issubdtype(leaf.dtype, jnp.integer):
                is_small = not leaf.size or (int(leaf.max()) < limit and int(leaf.min()) > -limit)
                integers = leaf.ravel()
            else:
                factor = self.scale if weight is None else weight * self.scale
                integers = np.rint(leaf.astype(np.float64).ravel() * factor)
                if not np.isfinite(integers).all():
                    raise OverflowError("a reply with NaN or infinity cannot be masked.")
                is_small = not leaf.size or np.abs(integers).max() < limit
            if not is_small:  # the message leaves the client, so it does not say how large
                raise OverflowError(
                    f"an entry of the reply is not below {self.largest(n_clients):g}, the range of "
                    f"{self.bits}-bit integers that are multiples of 1/{self.scale:g} and the sum "
                    f"of {n_clients} clients. Lower SecureAggregation.fraction_bits, or scale the "
                    "problem."
                )
            parts.append(integers.astype(np.int64))
        return np.concatenate(parts).astype(self.dtype)

    def decode(self, total: np.ndarray, like: Sequence[jax.ShapeDtypeStruct]) -> list[np.ndarray]:
        """The leaves of a sum of integers, of the shapes and types of ``like``."""
        signed = total.view(np.int64 if self.bits == 64 else np.int32)
        leaves, at = [], 0
        for leaf in like:
            size = math.prod(leaf.shape)
            part = signed[at : at + size].reshape(leaf.shape)
            at += size
            if not jnp.issubdtype(leaf.dtype, jnp.integer):
                part = part.astype(np.float64) / self.scale
            leaves.append(part.astype(leaf.dtype))
        return leaves

    def _limit(self, n_clients: int) -> float:
        """A power of two, so that n smaller integers have a sum that does not wrap around."""
        return 2.0 ** (self.bits - 1 - (n_clients - 1).bit_length())
