"""The handshake: server and clients check before the first step that they agree."""

import json

import jax.numpy as jnp
import numpy as np

from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import Plan
from rookery.runner.describe import describe
from rookery.runner.run_record import versions
from rookery.types import Problem

STEP = "handshake"
"""The name of the handshake in messages and events."""

KEY = "key"
"""The array with a client's public key, if replies are masked."""

_SHOWN = 100  # characters on either side of the first difference
_LINES = 10
_VERSIONS = ("rookery", "jax", "equinox", "python")


class HandshakeError(ValueError):
    """A client whose configuration differs from the server's."""


def configuration(
    problem: Problem, algorithm: AbstractAlgorithm, n_clients: int, plan: Plan
) -> dict[str, str]:
    """Everything, by name, that must be equal on the server and on a client."""
    used = versions()
    # functions are identified by their byte code, which differs between minor versions of Python
    used["python"] = used["python"].rpartition(".")[0]
    return {
        "message format": str(wire.VERSION),
        "versions": json.dumps({name: used[name] for name in _VERSIONS}),
        "float precision": str(jnp.zeros(()).dtype),
        "number of clients": str(n_clients),
        "problem": json.dumps(describe(problem), sort_keys=True),
        "algorithm": json.dumps(describe(algorithm), sort_keys=True),
        "secure aggregation": "none" if plan.secure is None else str(plan.secure),
        "steps": json.dumps([*dict.fromkeys(call.name for call in plan.calls), plan.fingerprint]),
    }


def differences(server: dict[str, str], client: dict[str, str]) -> list[str]:
    """One line per field that differs, quoting both values around the first difference.

    >>> differences({"float precision": "float64"}, {"float precision": "float32"})
    ['float precision: the server has float64, the client float32']
    """
    lines = []
    for name in dict.fromkeys([*server, *client]):
        ours, theirs = server.get(name), client.get(name)
        if ours != theirs:
            at = _first_difference(ours or "", theirs or "")
            pair = f"the server has {_around(ours, at)}, the client {_around(theirs, at)}"
            lines.append(f"{wire.printable(name)}: {pair}")
    return lines[:_LINES]


def write(fields: dict[str, str]) -> dict[str, np.ndarray]:
    """A configuration as the arrays of a message."""
    return {"handshake": wire.encode_text(json.dumps(fields))}


def read(arrays: wire.Arrays) -> dict[str, str]:
    """The configuration in a message; raises :class:`wire.WireError` if there is none."""
    try:
        fields = json.loads(wire.decode_text(arrays.get("handshake")))
    except (ValueError, RecursionError) as error:
        raise wire.WireError(f"malformed handshake: {error}") from None
    if not isinstance(fields, dict) or not all(isinstance(v, str) for v in fields.values()):
        raise wire.WireError("malformed handshake: expected an object with string values.")
    return fields


def _first_difference(a: str, b: str) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (u, w) in pairs if u != w), min(len(a), len(b)))


def _around(value: str | None, at: int) -> str:
    if value is None:
        return "nothing"
    begin, end = max(at - _SHOWN, 0), at + _SHOWN
    shown = wire.printable(value[begin:end])
    return f"{'...' if begin else ''}{shown}{'...' if end < len(value) else ''}"
