# pyright: reportMissingImports=false
"""Keys, streams and seals of secure aggregation: X25519, HKDF, ChaCha20 of ``cryptography``.

Nothing is invented here. A pair agrees on a key by X25519 and HKDF-SHA256; a mask is the stream of
ChaCha20; shares are sealed by ChaCha20-Poly1305 with random nonces.
"""

import importlib.util
import secrets

import numpy as np

from rookery.remote.protocol import shamir

KEY_BYTES = 32
"""Bytes of private, public and derived keys."""

_NONCE_BYTES, _TAG_BYTES = 12, 16

SEALED_BYTES = _NONCE_BYTES + 2 * shamir.SHARE_BYTES + _TAG_BYTES
"""Bytes of two shares that one client has sealed for another."""

_BLOCK = 1 << 18  # bytes to encrypt at a time
_ZEROS = bytes(_BLOCK)


def require() -> None:
    """Raise unless the package ``cryptography`` is installed."""
    if importlib.util.find_spec("cryptography") is None:
        raise ImportError(
            "secure aggregation needs the package cryptography: "
            "pip install -e '.[secure]' in rookery's checkout."
        )


def new_private() -> bytes:
    """A private key, from the operating system's random numbers."""
    return secrets.token_bytes(KEY_BYTES)


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: str) -> bytes:
    """The key that the owners of two private keys both derive, each from the other's public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    own = X25519PrivateKey.from_private_bytes(private)
    return derived(own.exchange(X25519PublicKey.from_public_bytes(public)), purpose)


def derived(secret: bytes, purpose: str) -> bytes:
    """A key for one purpose."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = f"rookery secure aggregation: {purpose}".encode()
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def self_mask(private: bytes, size: int, dtype: np.dtype) -> np.ndarray:
    """The mask that one private key makes: PRG(b_i)."""
    return stream(derived(private, "mask of one client"), size, dtype)


def pair_mask(private: bytes, public: bytes, size: int, dtype: np.dtype) -> np.ndarray:
    """The mask that two clients have in common: PRG(k_ij)."""
    return stream(agreed(private, public, "mask of a pair"), size, dtype)


def stream(key: bytes, size: int, dtype: np.dtype) -> np.ndarray:
    """Pseudo-random integers; a key must make only one stream."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    out = np.empty(size, dtype)
    flat = out.view(np.uint8)
    encryptor = Cipher(ChaCha20(key, nonce=bytes(16)), mode=None).encryptor()
    for at in range(0, flat.size, _BLOCK):
        part = flat[at : at + _BLOCK]
        part[:] = np.frombuffer(encryptor.update(_ZEROS[: part.size]), np.uint8)
    return out


def seal(key: bytes, plain: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate; opening it needs the same context."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, context)


def opened(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """What was sealed; raises :class:`ValueError` if it was not, or was changed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    nonce, text = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, text, context)
    except InvalidTag:
        raise ValueError("a sealed message was changed, or is not for this client.") from None
