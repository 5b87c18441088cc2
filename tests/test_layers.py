"""Imports go one way."""

import ast
from pathlib import Path

import pytest

import rookery

ROOT = Path(rookery.__file__).parent
BASE = {"types", "tree", "check", "rng", "signature", "uint64", "loss", "samples", "lazy"}
MAY_IMPORT = {
    "types": set(),
    "check": set(),
    "tree": {"types"},
    "rng": {"types"},
    "signature": set(),
    "uint64": set(),
    "lazy": set(),
    "citation": {"check"},
    "loss": {"types"},
    "samples": {"types", "rng", "loss"},
    "models": {"types", "check", "models"},
    "problem": BASE | {"problem"},
    "clients": BASE | {"clients"},
    "program": BASE | {"program"},
    "algorithms": BASE | {"problem", "program", "algorithms"},
    "engines": BASE | {"program", "clients", "engines"},
    "runner": BASE | {"engines", "program", "clients", "runner"},
    "remote": BASE
    | {"engines", "program", "clients", "remote", "runner.describe", "runner.run_record"},
    "report": {
        "report",
        "runner.atomic_file",
        "runner.best",
        "runner.documents",
        "runner.history",
        "runner.run_record",
    },
    "doctor": BASE | {"problem", "clients", "program", "algorithms", "engines", "runner", "doctor"},
    "tracking": {"tracking", "runner.tracker"},
    "tasks": BASE | {"models", "problem", "clients", "runner", "tasks"},
}
ONLY_IN = {
    "matplotlib": {"report", "clients"},  # clients: the picture of who holds what
    "tyro": {"cli"},
    "ray": {"remote"},
    "nvflare": {"remote"},
    "cryptography": {"remote"},
    "tensorboardX": {"tracking"},
    "wandb": {"tracking"},
    "mlflow": {"tracking"},
    "torch": {"models"},
    "torchax": {"models"},
    "flax": {"models"},
    "dp_accounting": {"runner"},
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
    package = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in imports(path):
        top, _, rest = name.partition(".")
        assert package in ONLY_IN.get(top, {package}), f"{name} belongs to {ONLY_IN.get(top)}"
        assert top not in NEVER.get(package, ()), f"{package} must not import {top}"
        assert name != "a relative import"
        if top == "rookery" and package in MAY_IMPORT:
            allowed = MAY_IMPORT[package]
            assert rest.partition(".")[0] in allowed or rest in allowed, f"{package} imports {name}"


def test_the_table_names_every_package():
    packages = {f.relative_to(ROOT).parts[0].removesuffix(".py") for f in FILES}
    above = {"__init__", "cli", "experiment"}
    assert packages - set(MAY_IMPORT) == above


# ---- no import cycle, and nobody uses another module's private names

MODULES = {
    ".".join(("rookery", *f.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): f
    for f in FILES
}
PRIVATE_STILL_USED = {
    "remote/transports/ray/cluster.py: _private",  # Ray has no public name for it
}


def edges(module: str) -> set[str]:
    """The modules that a module imports, inside functions and for types alone too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{name.name}" for name in node.names}
            found |= whole & set(MODULES) or {node.module}
    return (found & set(MODULES)) - {module}


def test_no_module_imports_itself_through_others():
    graph = {module: edges(module) for module in MODULES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in graph[module]:
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def private_uses(path: Path) -> set[str]:
    """Private names of others: ``x._name`` unless x is self, cls or this class; imported ones."""
    tree = ast.parse(path.read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", *own}
            is_other = isinstance(node.value, ast.Name) and node.value.id == "other"  # as in __eq__
            if not is_own and not is_other:
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {name.name for name in node.names if is_private(name.name)}
    return {f"{path.relative_to(ROOT)}: {name}" for name in found}


def is_private(name: str) -> bool:
    named_tuple = {"_replace", "_asdict", "_fields", "_make"}
    return name.startswith("_") and not name.startswith("__") and name not in named_tuple


@pytest.mark.parametrize("path", FILES, ids=[str(f.relative_to(ROOT)) for f in FILES])
def test_a_module_uses_no_private_name_of_another(path):
    assert private_uses(path) <= PRIVATE_STILL_USED


def test_the_list_of_private_names_still_used_is_no_longer_than_it_must_be():
    assert set().union(*map(private_uses, FILES)) >= PRIVATE_STILL_USED
