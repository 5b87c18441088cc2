"""Imports go one way."""

import ast
from pathlib import Path

import pytest

import rookery

ROOT = Path(rookery.__file__).parent
BASE = {"types", "tree", "check", "rng"}
MAY_IMPORT = {
    "types": set(),
    "check": set(),
    "tree": {"types"},
    "rng": {"types"},
    "models": {"types"},
    "problem": BASE | {"problem"},
    "clients": BASE | {"clients"},
    "program": BASE | {"program"},
    "algorithms": BASE | {"problem", "program", "algorithms"},
    "engines": BASE | {"program", "clients", "engines"},
    "runner": BASE | {"engines", "program", "clients", "runner"},
    "remote": BASE
    | {"engines", "program", "clients", "remote", "runner.describe", "runner.run_record"},
    "report": {"report", "runner.history", "runner.run_record"},
    "tracking": {"tracking", "runner.tracker"},
    "tasks": BASE | {"models", "problem", "clients", "runner", "tasks"},
}
ONLY_IN = {
    "matplotlib": {"report"},
    "tyro": {"cli"},
    "ray": {"remote"},
    "nvflare": {"remote"},
    "tensorboardX": {"tracking"},
    "wandb": {"tracking"},
    "mlflow": {"tracking"},
}
NEVER = {"report": {"jax"}, "algorithms": {"numpy"}, "program": {"numpy"}}
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module == "rookery":
                found |= {f"rookery.{name.name}" for name in node.names}
            else:
                found.add(node.module)
        elif isinstance(node, ast.ImportFrom):
            found.add("a relative import")
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(f.relative_to(ROOT)) for f in FILES])
def test_a_module_imports_only_what_its_layer_may(path):
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in imports(path):
        top, _, rest = name.partition(".")
        assert room in ONLY_IN.get(top, {room}), f"{name} belongs to {ONLY_IN.get(top)}"
        assert top not in NEVER.get(room, ()), f"{room} must not import {top}"
        assert name != "a relative import"
        if top == "rookery" and room in MAY_IMPORT:
            allowed = MAY_IMPORT[room]
            assert rest.partition(".")[0] in allowed or rest in allowed, f"{room} imports {name}"


def test_the_table_names_every_room():
    rooms = {f.relative_to(ROOT).parts[0].removesuffix(".py") for f in FILES}
    above = {"__init__", "cli", "experiment"}
    assert rooms - set(MAY_IMPORT) == above
