"""Random damage to experiment files and to the files of run directories, by a seed."""

import copy
import datetime
import json
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Json = Any  # whatever a TOML or JSON file may hold

ODD_VALUES: tuple[Json, ...] = (
    0, 1, -1, 3, 2**40, -(2**70), 0.0, 0.5, -2.5, 1e300, math.inf, -math.inf, math.nan,
    True, False, "", "..", "a/b", "name", "json:loads", "ünïcode", "x" * 300,
    [], [1, 2], ["a"], [[]], [{}], [-1], [math.nan], {}, {"name": "FedAvg"}, {"name": 3},
    {"name": "SGDStep", "lr": "a"}, {"a": {"b": {}}}, datetime.date(2026, 1, 2),
)  # fmt: skip


def mutated_tables(tables: Mapping[str, Json], chance: random.Random) -> dict[str, Json]:
    """The tables of a file with one to three values replaced, removed, renamed or exchanged."""
    changed = copy.deepcopy(dict(tables))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(_places(changed))
        if not places:
            break
        parent, key = chance.choice(places)
        kind = chance.randrange(8)
        if kind < 4:
            parent[key] = copy.deepcopy(chance.choice(ODD_VALUES))
        elif kind == 4:
            del parent[key]
        elif kind == 5:
            other, its_key = chance.choice(places)
            parent[key] = copy.deepcopy(other[its_key])
        elif kind == 6 and isinstance(parent, dict):
            name = str(key)
            parent[chance.choice(("", "..", ".", "name", "a b", name + "x"))] = parent.pop(key)
        else:
            parent[key] = [parent[key]]
    return changed


def _places(value: Json) -> Iterator[tuple[Json, Json]]:
    """Every value inside a value, as its container and its key."""
    if not isinstance(value, dict | list):
        return
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _places(inner)


def mutated_text(text: str, chance: random.Random) -> bytes:
    """A text with a few bytes flipped, removed, doubled or inserted, or cut off."""
    content = bytearray(text.encode())
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(content))
        kind = chance.randrange(5)
        if kind == 0:
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del content[at : at + chance.randrange(1, 30)]
        elif kind == 2:
            content[at:at] = content[at : at + chance.randrange(1, 80)]
        elif kind == 3:
            content[at:at] = chance.choice((b"=", b"[", b"]", b'"', b"{", b".", b"\n[", b"\x00"))
        else:
            del content[at:]
        if not content:
            break
    return bytes(content)


def as_toml(tables: Mapping[str, Json]) -> str:
    """Tables as text: each key of the file on a line."""
    return "".join(f"{json.dumps(key)} = {_inline(value)}\n" for key, value in tables.items())


def _inline(value: Json) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.isoformat() if isinstance(value, datetime.date) else json.dumps(value)


def damage_file(path: Path, chance: random.Random) -> str:
    """Damage a file in one of the ways in which files get damaged; returns which."""
    content = path.read_bytes()
    kind = chance.choice(
        ("cut", "flip", "flip", "empty", "delete", "directory", "zeros", "double line",
         "text", "list", "nest", "values", "values", "values", "swap lines")
    )  # fmt: skip
    if kind in ("values", "swap lines", "double line") and path.suffix not in (".json", ".jsonl"):
        kind = "flip"
    if kind == "cut":
        path.write_bytes(content[: chance.randrange(len(content) + 1)])
    elif kind == "flip" and content:
        changed = bytearray(content)
        # half of the time at the beginning, where a safetensors file has its header
        first = 3000 if chance.random() < 0.5 else len(content)
        for _ in range(chance.choice((1, 1, 8))):
            changed[chance.randrange(min(first, len(content)))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(changed))
    elif kind == "delete":
        path.unlink()
    elif kind == "directory":
        path.unlink()
        path.mkdir()
    elif kind == "zeros":
        path.write_bytes(bytes(len(content)))
    elif kind == "values" and content:
        path.write_text(_mutated_json(content.decode(), path.suffix == ".jsonl", chance))
    elif kind in ("double line", "swap lines") and content:
        lines = content.decode().splitlines(keepends=True)
        at = chance.randrange(len(lines))
        if kind == "double line":
            lines.insert(at, lines[at])
        else:
            chance.shuffle(lines)
        path.write_text("".join(lines))
    else:
        path.write_text({"text": "hello\n", "list": "[1]\n", "nest": "[" * 50_000}.get(kind, ""))
    return kind


def _mutated_json(text: str, has_lines: bool, chance: random.Random) -> str:
    """JSON with a few values of a wrong kind; of a file of lines in one of them."""
    if not has_lines:
        return json.dumps(mutated_tables(json.loads(text), chance), default=str)
    lines = text.splitlines()
    at = chance.randrange(len(lines))
    lines[at] = json.dumps(mutated_tables(json.loads(lines[at]), chance), default=str)
    return "\n".join(lines) + "\n"
