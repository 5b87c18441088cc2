"""Messages as bytes: a fixed header, a description of the arrays, and their raw bytes.

A message is plain data: nothing in it is executed, imported or unpickled. Decoding arbitrary bytes
either returns a message or raises :class:`WireError`. Every size that a message claims is checked
against a limit, and against the bytes received, before it is used.

    header       magic, version, kind, flags, client, slot, exchange, sizes, checksum
    name         of the step, UTF-8
    description  per array: length of its path, type, number of axes, then path and axes
    body         the arrays' bytes, little-endian, each array aligned to a multiple of 16

A message is one flat buffer, or the parts of it: large arrays are parts of their own, which are not
copied, and parts that messages to several clients have in common are the same objects.
"""

import enum
import math
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DType = Any  # JAX has no public type for the dtype of keys
"""The dtype of an array or of keys."""

MAGIC = b"ROOK"
VERSION = 3

_HEADER = struct.Struct("<4sHBBIIQHHIQI")
_ARRAY = struct.Struct("<HBB")
_ALIGNMENT = 16
_PADDING = [bytes(n) for n in range(_ALIGNMENT)]
_SHOWN = 500  # characters shown of a text that a peer wrote
_SHORT = 4096  # descriptions of at most this many bytes are cached
_FEW = 64  # and when encoding, those of at most this many arrays
_CHECKED = 1  # flag: the checksum also covers the body
_LARGE = 64 << 10  # arrays of at least this many bytes are parts of their own

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
    """The bytes are not a valid message, or the message exceeds a limit."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Keys:
    """Random keys as raw words, until :func:`wrap_keys` makes JAX keys of them.

    JAX compiles a program for every new shape of keys, so a peer could make us compile at will if
    decoding made JAX keys right away.
    """

    impl: str = field(metadata={"static": True})
    words: np.ndarray | jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of keys."""
        return self.words.shape[:-1]

    @property
    def size(self) -> int:
        """Number of keys."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> DType:
        """JAX's dtype of such keys."""
        return _key_dtype(self.impl)


Leaf = np.ndarray | jax.Array | Keys
"""An array of a message."""

Arrays = Mapping[str, Leaf]
"""The arrays of a message, by path."""


Buffer = bytes | bytearray | memoryview | np.ndarray
"""Bytes; an array is one of ``uint8`` with one axis."""

Parts = list[Buffer] | tuple[Buffer, ...]
"""A message in parts; joined they are the flat buffer."""


class Kind(enum.IntEnum):
    """What a message is for."""

    HELLO = 1
    """Handshake, in both directions."""
    RUN = 2
    """A request: the server asks a client to run steps."""
    REPLY = 3
    """A client's reply to a request."""
    FAILURE = 4
    """A client could not carry out a request."""
    KEYS = 5
    """Secure aggregation: the server asks for fresh keys."""
    UNMASK = 6
    """Secure aggregation: the server asks for shares of keys."""


_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True)
class Limits:
    """Upper bounds on the sizes a message may claim; a larger one is rejected unread."""

    name: int = 512
    arrays: int = 20_000
    description: int = 4 << 20
    body: int = 1 << 30

    def allow(self, other: "Limits") -> bool:
        """Whether every message within the other limits is within these."""
        return (
            self.name >= other.name
            and self.arrays >= other.arrays
            and self.description >= other.description
            and self.body >= other.body
        )

    def joined(self, other: "Limits") -> "Limits":
        """Limits that allow whatever either of the two allows."""
        return Limits(*map(max, _limits(self), _limits(other)))


LIMITS = Limits()


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        kind: what it is for.
        name: name of the step.
        client: the client that receives or sent it.
        slot: the client's position in the cohort.
        exchange: number of the exchange; identifies late and duplicate replies.
        arrays: arrays by path: NumPy's, JAX's, or JAX keys. Decoded arrays are read-only views, and
            decoded keys are :class:`Keys`.
    """

    kind: Kind
    name: str
    client: int
    slot: int = 0
    exchange: int = 0
    arrays: Arrays = field(default_factory=dict)


class Content:
    """Messages of one kind with the same name and arrays: all but client, slot and exchange.

    Args:
        kind: what they are for.
        name: name of the step.
        arrays: arrays by path; see :class:`Message`.
    """

    def __init__(self, kind: Kind, name: str, arrays: Arrays):
        _little_endian()
        self.kind, self.name, self.arrays = kind, name, arrays
        plain = [_to_plain(path, value) for path, value in arrays.items()]
        describe = _describe if len(plain) <= _FEW else _describe.__wrapped__
        description = describe(tuple(what for what, _ in plain))
        encoded = name.encode()
        self._described = encoded + description
        self._body, size = _body([array for _, array in plain])
        self._sizes = (len(encoded), len(plain), len(description), size)
        self._gap = _PADDING[-(_HEADER.size + len(self._described)) % _ALIGNMENT]

    def to(self, client: int, slot: int, exchange: int, *, is_checked: bool = True) -> Parts:
        """One message; all but its first part are the same objects for all messages.

        Args:
            client: the client that receives or sent it.
            slot: the client's position in the cohort.
            exchange: number of the exchange.
            is_checked: whether the checksum also covers the body. Transports that protect their
                payload, as TLS does, can save the time.
        """
        flags = _CHECKED if is_checked else 0
        fixed = (MAGIC, VERSION, self.kind, flags, client, slot, exchange, *self._sizes)
        checksum = zlib.crc32(self._described, zlib.crc32(_HEADER.pack(*fixed, 0)))
        for part in self._body if is_checked else ():
            checksum = zlib.crc32(_view(part), checksum)
        head = b"".join((_HEADER.pack(*fixed, checksum), self._described, self._gap))
        return (head, *self._body)


def encode(message: Message, *, is_checked: bool = True) -> bytes:
    """The message as one flat buffer; ``is_checked`` as in :meth:`Content.to`."""
    return joined(encode_parts(message, is_checked=is_checked))


def encode_parts(message: Message, *, is_checked: bool = True) -> Parts:
    """The message in parts; its large arrays are not copied."""
    content = Content(message.kind, message.name, message.arrays)
    return content.to(message.client, message.slot, message.exchange, is_checked=is_checked)


def client_of(head: Buffer) -> int:
    """The client in the header of a message that comes from a trusted peer, as Ray's are.

    >>> client_of(encode(Message(Kind.RUN, "step", client=3)))
    3
    """
    return _HEADER.unpack_from(_view(head))[4]


def joined(parts: Parts) -> bytes:
    """The flat buffer of a message.

    >>> joined((b"an", np.array([100], np.uint8)))
    b'and'
    """
    return b"".join(map(_view, parts))


def size_of(data: Buffer | Parts) -> int:
    """The bytes of a message.

    >>> size_of((b"an", b"d"))
    3
    """
    return sum(map(len, map(_view, data if isinstance(data, list | tuple) else (data,))))


def decode(data: Buffer | Parts, limits: Limits = LIMITS) -> Message:
    """The message in a buffer or in parts; raises :class:`WireError` if there is none."""
    _little_endian()
    parts = data or (b"",) if isinstance(data, list | tuple) else (data,)
    head, *others = map(_view, parts)
    length = len(head) + sum(map(len, others))
    if len(head) < _HEADER.size:
        raise WireError(f"{len(head)} bytes are too short for a message header of {_HEADER.size}.")
    *fixed, checksum = _HEADER.unpack_from(head)
    magic, version, kind, flags, client, slot, exchange, *sizes = fixed
    if magic != MAGIC:
        raise WireError("not a rookery message: bad magic bytes.")
    if version != VERSION:
        raise WireError(f"message format version {version}, but this rookery reads {VERSION}.")
    if kind not in _KINDS or flags not in (0, _CHECKED):
        raise WireError(f"unknown message kind {kind} with flags {flags}.")
    name_size, count, description_size, body_size = sizes
    if not (
        name_size <= limits.name
        and count <= limits.arrays
        and description_size <= limits.description
        and body_size <= limits.body
    ):
        raise _too_large(sizes, limits)
    begin = _HEADER.size + name_size
    end = begin + description_size
    body_at = end + -end % _ALIGNMENT
    if length != body_at + body_size:
        raise WireError(f"the message claims {body_at + body_size} bytes but has {length}.")
    if len(head) < body_at:
        raise WireError(f"its first part has {len(head)} bytes, but its body begins at {body_at}.")
    covered = zlib.crc32(head[_HEADER.size : end], zlib.crc32(_HEADER.pack(*fixed, 0)))
    body = (head[body_at:], *others)
    for part in body if flags & _CHECKED else ():
        covered = zlib.crc32(part, covered)
    if covered != checksum:
        raise WireError("checksum mismatch: the message was damaged in transit.")
    name = _text(head[_HEADER.size : begin])
    layout = _layout if description_size <= _SHORT else _layout.__wrapped__
    places, needed = layout(bytes(head[begin:end]), count)
    if needed != body_size:
        raise WireError(f"the arrays need {needed} bytes, but the body has {body_size}.")
    return Message(_KINDS[kind], name, client, slot, exchange, _arrays(places, body))


def keys_to_words(keys: jax.Array, path: str = "key") -> Keys:
    """JAX keys as raw words."""
    impl = str(jax.random.key_impl(keys))
    if impl not in _KEY_CODES:
        raise WireError(f"{path!r}: random keys of type {impl} cannot be sent.")
    return Keys(impl, jax.random.key_data(keys))


def words_to_keys(keys: Keys) -> jax.Array:
    """Raw words as JAX keys."""
    return jax.random.wrap_key_data(jnp.asarray(keys.words), impl=keys.impl)


def unwrap_keys(value: Leaf, path: str = "key") -> Leaf:
    """:class:`Keys` for JAX keys; other arrays unchanged."""
    if isinstance(value, jax.Array) and not isinstance(value.dtype, np.dtype):
        return keys_to_words(value, path)  # only keys have a dtype of JAX's own
    return value


def wrap_keys(value: Leaf) -> np.ndarray | jax.Array:
    """JAX keys for :class:`Keys`; other arrays unchanged."""
    return words_to_keys(value) if isinstance(value, Keys) else value


def encode_text(value: str) -> np.ndarray:
    """A string as an array of UTF-8 bytes.

    >>> decode_text(encode_text("client"))
    'client'
    """
    return np.frombuffer(value.encode(), np.uint8)


def decode_text(array: Leaf | None) -> str:
    """The string in an array of UTF-8 bytes."""
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1:
        raise WireError("expected a UTF-8 string.")
    return _text(memoryview(array.tobytes()))


def printable(value: str) -> str:
    """A peer's text, safe to display: truncated, and without control characters."""
    return "".join(c if c.isprintable() else " " for c in value[:_SHOWN])


@lru_cache(128)  # a run sends the same few kinds of messages over and over
def _describe(arrays: tuple[tuple[str, int, tuple[int, ...]], ...]) -> bytes:
    """The description of arrays, each given by path, type code and shape."""
    parts = []
    for path, code, shape in arrays:
        encoded = path.encode()
        parts += [_ARRAY.pack(len(encoded), code, len(shape)), encoded]
        parts.append(struct.pack(f"<{len(shape)}Q", *shape))
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _Place:
    """One array in the body of a message: type, shape and position."""

    path: str
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int
    keys: str | None


@lru_cache(128)
def _layout(description: bytes, count: int) -> tuple[tuple[_Place, ...], int]:
    """The arrays in a description, and the size of the body that holds them."""
    places: list[_Place] = []
    at, offset = 0, 0
    for _ in range(count):
        if at + _ARRAY.size > len(description):
            raise WireError("the description is truncated.")
        path_size, code, axes = _ARRAY.unpack_from(description, at)
        at += _ARRAY.size
        if at + path_size + 8 * axes > len(description):
            raise WireError("the description is truncated.")
        path = _text(description[at : at + path_size])
        shape = struct.unpack_from(f"<{axes}Q", description, at + path_size)
        at += path_size + 8 * axes
        offset += -offset % _ALIGNMENT
        places.append(_place(path, code, shape, offset))
        offset = places[-1].end
    if len({place.path for place in places}) != count:
        raise WireError("two arrays have the same path.")
    if at != len(description):
        raise WireError("the description has trailing bytes.")
    return tuple(places), offset


def _place(path: str, code: int, shape: tuple[int, ...], begin: int) -> _Place:
    if code not in _TYPES and code not in _KEYS:
        raise WireError(f"{path!r}: unknown array type {code}.")
    keys, words = _KEYS.get(code, (None, 0))
    dtype = np.dtype(np.uint32) if words else _TYPES[code]
    whole = (*shape, words) if words else shape
    # an axis of length 0 must not hide other axes that are impossibly long
    if len(whole) > 32 or math.prod(max(n, 1) for n in whole) > 1 << 40:
        raise WireError(f"{path!r}: shape {shape} does not fit in a message.")
    return _Place(path, dtype, whole, begin, begin + math.prod(whole) * dtype.itemsize, keys)


def _to_plain(path: str, value: Leaf) -> tuple[tuple[str, int, tuple[int, ...]], np.ndarray]:
    """Path, type code and shape of an array, and its contents in C order."""
    value = unwrap_keys(value, path)
    if isinstance(value, Keys):
        return (path, _KEY_CODES[value.impl], value.shape), np.asarray(value.words, order="C")
    array = np.asarray(value, order="C")
    if array.dtype not in _CODES:
        raise WireError(f"{path!r}: arrays of type {array.dtype} cannot be sent.")
    return (path, _CODES[array.dtype], array.shape), array


def _body(arrays: Sequence[np.ndarray]) -> tuple[tuple[Buffer, ...], int]:
    """The body of arrays in parts, and its size."""
    parts: list[Buffer] = []
    small: list[bytes | memoryview] = []  # to be joined
    at = 0
    for array in arrays:
        if at % _ALIGNMENT:
            # after a large array the padding is a part too, so that the next one begins aligned
            padding = _PADDING[-at % _ALIGNMENT]
            small.append(padding) if small else parts.append(padding)
            at += -at % _ALIGNMENT
        flat = array.reshape(-1).view(np.uint8)
        at += array.nbytes
        if array.nbytes < _LARGE:
            small.append(flat.data)
        else:
            parts += [b"".join(small), flat] if small else [flat]
            small = []
    return (*parts, b"".join(small)) if small else tuple(parts), at


def _view(part: Buffer) -> memoryview:
    """The bytes of a part, read-only."""
    data = part.data if isinstance(part, np.ndarray) else memoryview(part)
    return data.toreadonly().cast("B")


def _arrays(places: Sequence[_Place], body: Sequence[memoryview]) -> dict[str, np.ndarray | Keys]:
    """The arrays in the parts of a body, which are long enough together."""
    arrays, rest, begin = {}, iter(body), 0
    part = next(rest)
    for place in places:
        while place.end > begin + len(part):
            if place.begin < begin + len(part):
                raise WireError(f"{place.path!r}: the array is divided between two parts.")
            begin += len(part)
            part = next(rest)
        arrays[place.path] = _from_plain(place, part[place.begin - begin : place.end - begin])
    return arrays


def _from_plain(place: _Place, data: memoryview) -> np.ndarray | Keys:
    array = np.frombuffer(data, place.dtype).reshape(place.shape)
    if place.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise WireError(f"{place.path!r}: a boolean is neither 0 nor 1.")
    return Keys(place.keys, array) if place.keys else array


@lru_cache
def _key_dtype(impl: str) -> DType:
    return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype


def _text(view: bytes | memoryview) -> str:
    try:
        return bytes(view).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"not valid UTF-8: {error}") from None


def _limits(limits: Limits) -> tuple[int, ...]:
    return limits.name, limits.arrays, limits.description, limits.body


def _too_large(sizes: Sequence[int], limits: Limits) -> WireError:
    names = ("name", "arrays", "description", "body")
    claims = zip(names, sizes, _limits(limits), strict=True)
    what, size, most = next(claim for claim in claims if claim[1] > claim[2])
    return WireError(f"{what} claims {size}, the limit is {most}.")


def _little_endian() -> None:
    if sys.byteorder != "little":
        raise WireError("rookery messages are little-endian; this machine is big-endian.")
