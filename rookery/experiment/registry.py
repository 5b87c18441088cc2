"""Names that experiment files use, and how a table with a name becomes an object."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rookery import algorithms, check, engines, program, tasks
from rookery.clients import partition

ALGORITHMS: dict[str, Callable] = {name: getattr(algorithms, name) for name in algorithms.__all__}
PARTS: dict[str, Callable] = {name: getattr(program, name) for name in program.__all__} | {
    name: getattr(algorithms.parts, name) for name in algorithms.parts.__all__
}
TASKS: dict[str, Callable] = {name: getattr(tasks, name) for name in tasks.__all__}
ENGINES: dict[str, Callable] = {name: getattr(engines, name) for name in engines.__all__}
PARTITIONS: dict[str, Callable] = {
    name: getattr(partition, name)
    for name in ("iid", "shards", "k_classes", "heterogeneity", "dominant_class", "given_sizes",
                 "dirichlet")
}  # fmt: skip


def needs_data(make: Callable) -> bool:
    """Whether a task is built on a data set."""
    return "dataset" in inspect.signature(make).parameters


def check_keys(table: Mapping[str, Any], valid: Collection[str], where: str) -> None:
    """Raise at the first key that is not valid, with the nearest one that is."""
    for key in table:
        check.one_of(f"key in [{where}]", key, valid)


def name_of(table: Any, where: str) -> str:
    """The name in a table that stands for an object."""
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise ValueError(f"[{where}] must be a table with a name, got {table!r}.")
    return table["name"]


def lookup(registry: Mapping[str, Callable], table: Any, where: str) -> Callable:
    """What a table's name stands for in a registry."""
    return registry[check.one_of(where, name_of(table, where), registry)]


def make_object(registry: Mapping[str, Callable], table: Any, where: str) -> Any:
    """The object that a table with a name stands for."""
    fn = lookup(registry, table, where)
    arguments = arguments_of(fn, table, where)
    return fn(**{key: _value(value, f"{where}.{key}") for key, value in arguments.items()})


def _value(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return make_object(PARTS, value, where)
    if isinstance(value, list):
        return tuple(_value(item, f"{where}[{i}]") for i, item in enumerate(value))
    return value


def arguments_of(
    fn: Callable,
    table: Mapping[str, Any],
    where: str,
    given: tuple[str, ...] = (),
    extra: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The table without its name, if its keys are arguments of ``fn`` and none is missing."""
    parameters = inspect.signature(fn).parameters
    valid = [key for key in parameters if key not in given] + list(extra)
    arguments = {key: value for key, value in table.items() if key != "name"}
    check_keys(arguments, set(valid), where)
    needed = [k for k in valid if k in parameters and parameters[k].default is inspect._empty]
    if missing := [key for key in needed if key not in arguments]:
        raise ValueError(f"[{where}] needs the key{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    return arguments
