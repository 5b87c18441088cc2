"""The wire format: messages survive a round trip, and anything else is rejected."""

import struct
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.remote.protocol import wire
from rookery.remote.protocol.wire import Kind, Limits, Message, WireError, decode, encode

ARRAYS = {
    "f64": np.linspace(0, 1, 6).reshape(2, 3),
    "f32": jnp.ones((3,), jnp.float32),
    "bf16": jnp.array([1.5, -2.0, float("nan")], jnp.bfloat16),
    "f16": np.zeros((0, 4), np.float16),
    "flag": np.array([True, False]),
    "count": np.int64(7),
    "c": np.array(1 + 2j),
    "key": jax.random.key(3),
    "keys": jax.random.split(jax.random.key(3), 4),
    "rbg": jax.random.key(3, impl="rbg"),
    "äö/0": np.arange(5, dtype=np.uint8),
}
MESSAGE = Message(Kind.RUN, "module.step", 4, 2, 2**40, ARRAYS)


@pytest.mark.parametrize("is_checked", [True, False])
def test_everything_comes_back(is_checked):
    got = decode(encode(MESSAGE, is_checked=is_checked))
    assert (got.kind, got.name, got.client, got.slot, got.exchange) == (
        (Kind.RUN, "module.step", 4, 2, 2**40)
    )
    assert list(got.arrays) == list(ARRAYS)
    for path, want in ARRAYS.items():
        have = got.arrays[path]
        assert have.dtype == want.dtype and have.shape == np.shape(want), path
        if jnp.issubdtype(want.dtype, jax.dtypes.prng_key):
            have = wire.wrap_keys(have)
            assert have.dtype == want.dtype
            assert jax.random.key_impl(have) == jax.random.key_impl(want)
            have, want = jax.random.key_data(have), jax.random.key_data(want)
        assert np.asarray(have).tobytes() == np.asarray(want).tobytes()


def test_an_array_without_elements_travels():
    got = decode(encode(Message(Kind.RUN, "", 0, arrays={"a": np.zeros((0, 4))})))
    assert got.arrays["a"].shape == (0, 4)


LARGE = {"a": np.arange(3), "b": np.arange(70_001, dtype=np.uint8), "c": np.zeros(20_000), "d": 1.5}


@pytest.mark.parametrize("is_checked", [True, False])
def test_parts_are_the_flat_message_and_large_arrays_are_not_copied(is_checked):
    arrays = {path: np.asarray(array) for path, array in LARGE.items()}
    content = wire.Content(Kind.RUN, "step", arrays)
    parts, others = (content.to(client, 0, 9, is_checked=is_checked) for client in (1, 2))
    message = Message(Kind.RUN, "step", 1, 0, 9, arrays)
    assert wire.joined(parts) == encode(message, is_checked=is_checked)
    assert all(a is b for a, b in zip(parts[1:], others[1:], strict=True))
    got = decode(parts)
    for path, array in arrays.items():
        have = got.arrays[path]
        assert isinstance(have, np.ndarray) and have.tobytes() == array.tobytes()
        assert not have.flags.writeable and have.flags.aligned
        assert np.shares_memory(have, array) == (path in ("b", "c"))
    assert decode(others).client == 2


def test_parts_that_do_not_fit_together_are_rejected():
    flat = encode(Message(Kind.RUN, "step", 1, 0, 9, {"a": np.arange(4)}))
    with pytest.raises(WireError, match="divided"):
        decode([flat[:-8], flat[-8:]])
    with pytest.raises(WireError, match="first part"):
        decode([flat[:60], flat[60:]])
    with pytest.raises(WireError, match=f"claims {len(flat)} bytes but has {len(flat) + 1}"):
        decode([flat, b"x"])
    with pytest.raises(WireError, match="too short"):
        decode([])


def test_texts_travel():
    got = decode(encode(Message(Kind.RUN, "", 0, arrays={"t": wire.encode_text("ä")})))
    assert wire.decode_text(got.arrays["t"]) == "ä"


def test_what_cannot_travel_is_refused_by_its_path():
    with pytest.raises(WireError, match=r"'here'.*object"):
        encode(Message(Kind.RUN, "", 0, arrays={"here": np.array([None])}))


def resealed(data: bytes) -> bytes:
    """The message with a valid checksum, as an attacker would send it."""
    header = wire._HEADER
    *fixed, _ = header.unpack_from(data)
    end = header.size + fixed[7] + fixed[9]
    checksum = zlib.crc32(header.pack(*fixed, 0) + data[header.size : end])
    if fixed[3] & 1:
        checksum = zlib.crc32(data[end + -end % 16 :], checksum)
    return header.pack(*fixed, checksum & 0xFFFFFFFF) + data[header.size :]


def with_field(index: int, value: int) -> bytes:
    data = encode(MESSAGE)
    fields = list(wire._HEADER.unpack_from(data))
    fields[index] = value
    return resealed(wire._HEADER.pack(*fields) + data[wire._HEADER.size :])


@pytest.mark.parametrize(
    ("index", "value", "match"),
    [
        (1, 1, "version 1"),
        (2, 99, "kind"),
        (7, 60_000, "name claims"),
        (8, 60_000, "arrays claims"),
        (9, 1 << 31, "description claims"),
        (10, 2 << 30, "body claims 2147483648"),
        (10, 5, "claims 229 bytes"),
    ],
)
def test_a_header_that_claims_too_much_is_refused(index, value, match):
    began = time.monotonic()
    with pytest.raises(WireError, match=match):
        decode(with_field(index, value))
    assert time.monotonic() - began < 0.1


def test_a_huge_shape_is_refused_before_anything_is_allocated():
    data = bytearray(encode(Message(Kind.RUN, "", 0, arrays={"a": np.zeros(4)})))
    at = bytes(data).index(struct.pack("<Q", 4), wire._HEADER.size)
    for claim, said in ((2**31, "body has 32"), (2**63, "does not fit")):
        data[at : at + 8] = struct.pack("<Q", claim)
        with pytest.raises(WireError, match=said):
            decode(resealed(bytes(data)))


def test_limits_can_be_set():
    with pytest.raises(WireError, match="body claims"):
        decode(encode(MESSAGE), Limits(body=10))


def test_one_changed_bit_anywhere_is_noticed():
    data = encode(Message(Kind.REPLY, "step", 1, arrays={"a": np.arange(3.0)}))
    padding = set(range(len(data) - 24 - 16, len(data) - 24))
    for at in set(range(len(data))) - padding:
        changed = bytearray(data)
        changed[at] ^= 4
        with pytest.raises(WireError):
            decode(bytes(changed))


def test_ten_thousand_hostile_messages_and_more():
    """Random bytes, mutated and truncated messages, with and without a checksum that fits."""
    rng = np.random.default_rng(0)
    good = [
        encode(MESSAGE),
        encode(MESSAGE, is_checked=False),
        encode(Message(Kind.REPLY, "s", 0, arrays={"a": np.arange(3.0), "b": np.array([True])})),
        encode(Message(Kind.HELLO, "", 0)),
    ]
    refused, read, began = 0, 0, time.monotonic()
    for i in range(12_000):
        data = bytearray(good[i % len(good)])
        if i % 5 == 0:
            data = bytearray(rng.bytes(int(rng.integers(0, 200))))
            if i % 2:
                data[:6] = wire.MAGIC + struct.pack("<H", wire.VERSION)
        else:
            for _ in range(int(rng.integers(1, 6))):
                data[int(rng.integers(len(data)))] = int(rng.integers(256))
            if i % 7 == 0:
                data = data[: int(rng.integers(len(data)))]
            elif i % 11 == 0:
                data += rng.bytes(int(rng.integers(1, 40)))
        data = bytes(data)
        if i % 2 and len(data) >= wire._HEADER.size:
            data = resealed(data)
        try:
            decode(data)
            read += 1
        except WireError:
            refused += 1
    assert refused + read == 12_000
    assert refused > 6_000 and read > 100  # a changed number in an array is still a message
    assert time.monotonic() - began < 60
