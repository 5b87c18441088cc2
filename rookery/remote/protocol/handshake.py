"""What server and clients must have in common before the first step, and the check of it."""

import json
from typing import Any

import jax.numpy as jnp

from rookery.program.algorithm import AbstractAlgorithm
from rookery.remote.protocol import wire
from rookery.remote.protocol.plan import Plan
from rookery.runner.describe import describe
from rookery.runner.run_record import versions

_SHOWN = 100  # characters on either side of the first difference
_LINES = 10
_VERSIONS = ("rookery", "jax", "equinox", "python")


class HandshakeError(ValueError):
    """Two sides that would not compute the same."""


def agreement(
    problem: Any, algorithm: AbstractAlgorithm, n_clients: int, plan: Plan
) -> dict[str, str]:
    """By name, what both sides must have in common."""
    used = versions()
    # functions are known by their compiled code, which differs between versions of Python
    used["python"] = used["python"].rpartition(".")[0]
    return {
        "format of messages": str(wire.VERSION),
        "versions": json.dumps({name: used[name] for name in _VERSIONS}),
        "float precision": str(jnp.zeros(()).dtype),
        "number of clients": str(n_clients),
        "problem": json.dumps(describe(problem), sort_keys=True),
        "algorithm": json.dumps(describe(algorithm), sort_keys=True),
        "steps": json.dumps([*dict.fromkeys(call.name for call in plan.calls), plan.fingerprint]),
    }


def differences(server: dict[str, str], client: dict[str, str]) -> list[str]:
    """One line for everything that is not the same, with both values where they part."""
    lines = []
    for name in dict.fromkeys([*server, *client]):
        ours, theirs = server.get(name), client.get(name)
        if ours != theirs:
            at = _first_difference(ours or "", theirs or "")
            pair = f"the server has {_around(ours, at)}, the client {_around(theirs, at)}"
            lines.append(f"{wire.tidy(name)}: {pair}")
    return lines[:_LINES]


def write(fields: dict[str, str]) -> dict[str, Any]:
    """An agreement as the arrays of a message."""
    return {"agreement": wire.text(json.dumps(fields))}


def read(arrays: Any) -> dict[str, str]:
    """An agreement out of a message, or :class:`wire.WireError`."""
    try:
        fields = json.loads(wire.read_text(arrays.get("agreement")))
    except (ValueError, RecursionError) as error:
        raise wire.WireError(f"this is not an agreement: {error}") from None
    if not isinstance(fields, dict) or not all(isinstance(v, str) for v in fields.values()):
        raise wire.WireError("an agreement is a table of texts.")
    return fields


def _first_difference(a: str, b: str) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (u, w) in pairs if u != w), min(len(a), len(b)))


def _around(value: str | None, at: int) -> str:
    if value is None:
        return "nothing"
    begin, end = max(at - _SHOWN, 0), at + _SHOWN
    shown = wire.tidy(value[begin:end])
    return f"{'...' if begin else ''}{shown}{'...' if end < len(value) else ''}"
