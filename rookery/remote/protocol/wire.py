"""Messages as bytes: a fixed header, a description of the arrays, and their raw bytes.

A message is data and nothing else: nothing in it is executed, imported or unpickled. Whatever
bytes come in, decoding gives a message or raises :class:`WireError`, and every size that a message
claims is held against a limit, and against the bytes that are there, before it is used.

    header       magic, version, kind, flags, client, slot, exchange, sizes, checksum
    name         of the step, UTF-8
    description  per array: length of its path, type, number of axes, then path and axes
    bytes        of the arrays, each beginning at a multiple of 16, little-endian
"""

import enum
import math
import struct
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MAGIC = b"ROOK"
VERSION = 2

_HEADER = struct.Struct("<4sHBBIIQHHIQI")
_ARRAY = struct.Struct("<HBB")
_ALIGNED = 16
_GAPS = [bytes(n) for n in range(_ALIGNED)]
_SHOWN = 500  # characters of a text that somebody else wrote
_SHORT = 4096  # bytes of a description that may be remembered
_FEW = 64  # arrays whose description may be
_CHECKED = 1  # flag: the checksum covers the arrays' bytes too

_TYPES = {
    code: np.dtype(name)
    for code, name in enumerate(
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
        "float16 float32 float64 complex64 complex128".split()
    )
} | {32: np.dtype(jnp.bfloat16)}
_CODES = {dtype: code for code, dtype in _TYPES.items()}
_KEYS = {64: ("threefry2x32", 2), 65: ("rbg", 4), 66: ("unsafe_rbg", 4)}  # code: name, words
_KEY_CODES = {name: code for code, (name, _) in _KEYS.items()}


class WireError(ValueError):
    """Bytes that are not a message, or a message that is too large."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Keys:
    """Random keys as they travel: plain words, until whoever wants keys has :func:`wrapped` them.

    JAX compiles something for every new shape of keys, which a peer must not have us do at will.
    """

    impl: str = field(metadata={"static": True})
    words: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array of keys."""
        return self.words.shape[:-1]

    @property
    def size(self) -> int:
        """How many keys."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> Any:
        """That of the keys."""
        return _key_dtype(self.impl)


class Kind(enum.IntEnum):
    """What a message is for."""

    HELLO = 1
    """Agreement at the start, in both directions."""
    RUN = 2
    """The server asks a client to do something."""
    REPLY = 3
    """A client has done it."""
    FAILURE = 4
    """A client has not."""


@dataclass(frozen=True)
class Limits:
    """The most that a message may claim; one that claims more is refused unread."""

    name: int = 512
    arrays: int = 20_000
    description: int = 4 << 20
    body: int = 1 << 30

    def allow(self, other: "Limits") -> bool:
        """Whether they let pass all that the others do."""
        return (
            self.name >= other.name
            and self.arrays >= other.arrays
            and self.description >= other.description
            and self.body >= other.body
        )

    def joined(self, other: "Limits") -> "Limits":
        """Those that let pass what either would."""
        return Limits(*map(max, _limits(self), _limits(other)))


LIMITS = Limits()


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        kind: what it is for.
        name: of the step that it belongs to.
        client: whom it goes to or comes from.
        slot: the client's place in the cohort.
        exchange: the number of the exchange, by which late and double replies are known.
        arrays: by path; NumPy arrays, or typed keys. Those that were decoded are read-only views,
            keys among them :class:`Keys`.
    """

    kind: Kind
    name: str
    client: int
    slot: int = 0
    exchange: int = 0
    arrays: Mapping[str, Any] = field(default_factory=dict)


def encode(message: Message, *, is_checked: bool = True) -> bytes:
    """One flat buffer.

    Args:
        message: its arrays may be NumPy's or JAX's.
        is_checked: whether a checksum covers the arrays too. A transport that protects what it
            carries, as TLS does, can save the time.
    """
    _little_endian()
    name = message.name.encode()
    plain = [_to_plain(path, value) for path, value in message.arrays.items()]
    describe = _describe if len(plain) <= _FEW else _describe.__wrapped__
    description = describe(tuple(what for what, _ in plain))
    body, at = [], 0
    for _, array in plain:
        body += [_GAPS[-at % _ALIGNED], array.reshape(-1).view(np.uint8).data]
        at += -at % _ALIGNED + array.nbytes
    flags = _CHECKED if is_checked else 0
    numbers = (message.client, message.slot, message.exchange)
    sizes = (len(name), len(message.arrays), len(description), at)
    fixed = (MAGIC, VERSION, message.kind, flags, *numbers, *sizes)
    checksum = zlib.crc32(_HEADER.pack(*fixed, 0) + name + description)
    if is_checked:
        for part in body:
            checksum = zlib.crc32(part, checksum)
    gap = _GAPS[-(_HEADER.size + len(name) + len(description)) % _ALIGNED]
    return b"".join((_HEADER.pack(*fixed, checksum), name, description, gap, *body))


def decode(data: bytes | bytearray | memoryview, limits: Limits = LIMITS) -> Message:
    """The message, or :class:`WireError` with the reason."""
    _little_endian()
    view = memoryview(data).cast("B")
    if len(view) < _HEADER.size:
        raise WireError(f"{len(view)} bytes are too few for a message.")
    *fixed, checksum = _HEADER.unpack_from(view)
    magic, version, kind, flags, client, slot, exchange, *sizes = fixed
    if magic != MAGIC:
        raise WireError("this is not a message of rookery: it begins otherwise.")
    if version != VERSION:
        raise WireError(f"the message has version {version}, this rookery reads {VERSION}.")
    if kind not in Kind.__members__.values() or flags not in (0, _CHECKED):
        raise WireError(f"no such kind of message: {kind} with flags {flags}.")
    for what, size, most in zip(
        ("name", "arrays", "description", "body"), sizes, _limits(limits), strict=True
    ):
        if size > most:
            raise WireError(f"{what} claims {size}, the limit is {most}.")
    name_size, count, description_size, body_size = sizes
    begin = _HEADER.size + name_size
    end = begin + description_size
    body_at = end + -end % _ALIGNED
    if len(view) != body_at + body_size:
        raise WireError(f"the message claims {body_at + body_size} bytes and has {len(view)}.")
    covered = zlib.crc32(view[_HEADER.size : end], zlib.crc32(_HEADER.pack(*fixed, 0)))
    covered = zlib.crc32(view[body_at:], covered) if flags & _CHECKED else covered
    if covered != checksum:
        raise WireError("the checksum does not fit: the message was damaged on its way.")
    name = _text(view[_HEADER.size : begin])
    layout = _layout if description_size <= _SHORT else _layout.__wrapped__
    places, length = layout(bytes(view[begin:end]), count)
    if length != body_size:
        raise WireError(f"{length} bytes of arrays: that does not fit the {body_size} there are.")
    arrays = {place.path: _from_plain(place, view[body_at:]) for place in places}
    return Message(Kind(kind), name, client, slot, exchange, arrays)


def unwrapped(value: Any, path: str = "key") -> Any:
    """An array of JAX as it travels: :class:`Keys` for typed keys, others as they are."""
    if not (isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)):
        return value
    impl = str(jax.random.key_impl(value))
    if impl not in _KEY_CODES:
        raise WireError(f"{path!r}: keys of type {impl} cannot travel.")
    return Keys(impl, jax.random.key_data(value))


def wrapped(value: Any) -> Any:
    """An array of a message as JAX takes it: typed keys for :class:`Keys`, others as they are."""
    if not isinstance(value, Keys):
        return value
    return jax.random.wrap_key_data(jnp.asarray(value.words), impl=value.impl)


def text(value: str) -> np.ndarray:
    """A string as an array, to travel with the others."""
    return np.frombuffer(value.encode(), np.uint8)


def read_text(array: Any) -> str:
    """The string again."""
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1:
        raise WireError("a text was wanted.")
    return _text(memoryview(array.tobytes()))


def tidy(value: str) -> str:
    """What a peer has said, as it may be shown: not long, and nothing that a terminal obeys."""
    return "".join(c if c.isprintable() else " " for c in value[:_SHOWN])


@lru_cache(128)  # programs send the same few kinds of messages again and again
def _describe(arrays: tuple[tuple[str, int, tuple[int, ...]], ...]) -> bytes:
    """The description of arrays of some paths, types and shapes."""
    parts = []
    for path, code, shape in arrays:
        encoded = path.encode()
        parts += [_ARRAY.pack(len(encoded), code, len(shape)), encoded]
        parts.append(struct.pack(f"<{len(shape)}Q", *shape))
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an array lies in the body of a message, and what it is."""

    path: str
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int
    keys: str | None


@lru_cache(128)
def _layout(description: bytes, count: int) -> tuple[tuple[_Place, ...], int]:
    """The arrays that a description tells of, and how many bytes they take."""
    places: list[_Place] = []
    at, offset = 0, 0
    for _ in range(count):
        if at + _ARRAY.size > len(description):
            raise WireError("the description ends in the middle of an array.")
        path_size, code, axes = _ARRAY.unpack_from(description, at)
        at += _ARRAY.size
        if at + path_size + 8 * axes > len(description):
            raise WireError("the description ends in the middle of an array.")
        path = _text(description[at : at + path_size])
        shape = struct.unpack_from(f"<{axes}Q", description, at + path_size)
        at += path_size + 8 * axes
        offset += -offset % _ALIGNED
        places.append(_place(path, code, shape, offset))
        offset = places[-1].end
    if len({place.path for place in places}) != count:
        raise WireError("a path is there twice.")
    if at != len(description):
        raise WireError("the description is longer than its arrays.")
    return tuple(places), offset


def _place(path: str, code: int, shape: tuple[int, ...], begin: int) -> _Place:
    if code not in _TYPES and code not in _KEYS:
        raise WireError(f"{path!r}: no such type: {code}.")
    keys, words = _KEYS.get(code, (None, 0))
    dtype = np.dtype(np.uint32) if words else _TYPES[code]
    whole = (*shape, words) if words else shape
    # an axis of length zero must not hide others that no array can have
    if len(whole) > 32 or math.prod(max(n, 1) for n in whole) > 1 << 40:
        raise WireError(f"{path!r}: shape {shape} does not fit the message.")
    return _Place(path, dtype, whole, begin, begin + math.prod(whole) * dtype.itemsize, keys)


def _to_plain(path: str, value: Any) -> tuple[tuple[str, int, tuple[int, ...]], np.ndarray]:
    """Path, type and shape of an array, and its numbers."""
    value = unwrapped(value, path)
    if isinstance(value, Keys):
        return (path, _KEY_CODES[value.impl], value.shape), np.asarray(value.words, order="C")
    array = np.asarray(value, order="C")
    if array.dtype not in _CODES:
        raise WireError(f"{path!r}: arrays of type {array.dtype} cannot travel.")
    return (path, _CODES[array.dtype], array.shape), array


def _from_plain(place: _Place, body: memoryview) -> Any:
    array = np.frombuffer(body[place.begin : place.end], place.dtype).reshape(place.shape)
    if place.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise WireError(f"{place.path!r}: a truth value is neither 0 nor 1.")
    return Keys(place.keys, array) if place.keys else array


@lru_cache
def _key_dtype(impl: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype


def _text(view: bytes | memoryview) -> str:
    try:
        return bytes(view).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"a text is not UTF-8: {error}") from None


def _limits(limits: Limits) -> tuple[int, ...]:
    return limits.name, limits.arrays, limits.description, limits.body


def _little_endian() -> None:
    if sys.byteorder != "little":
        raise WireError("rookery's messages are little-endian, and this machine is not.")
