"""Names in experiment files, and how a table with a name becomes an object.

A name is one of rookery's own, ``module:attribute`` for code of the user's (a module beside the
experiment file or anywhere on Python's path), or the name of an entry point that an installed
package declares in one of the groups ``rookery.algorithms``, ``rookery.tasks`` and
``rookery.datasets``.
"""

import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import optax

from rookery import algorithms, check, engines, tasks
from rookery.algorithms.shared.step_rule import Optimiser
from rookery.clients import datasets, partition
from rookery.program import availability, delays, participation, privacy, row_privacy
from rookery.program.availability import AbstractAvailability
from rookery.program.delays import AbstractDelay, Clock, Compute
from rookery.program.participation import AbstractParticipation
from rookery.runner import stop

Names = Mapping[str, Callable]

ALGORITHMS: Names = {
    name: getattr(algorithms, name) for name in (*algorithms.__all__, *algorithms.GROUPED)
}
_KINDS = (AbstractAvailability, AbstractDelay, AbstractParticipation, Clock, Compute)
PARTS: dict[str, Callable] = {
    name: part
    for module in (availability, delays, participation)
    for name, part in vars(module).items()
    if isinstance(part, type) and issubclass(part, _KINDS) and not name.startswith("Abstract")
} | {
    name: getattr(algorithms.parts, name)
    for name in algorithms.parts.__all__
    if name != "Optimiser"  # a file names the function that makes it, as optax:adam
}
PARTS |= {
    name: getattr(privacy, name) for name in ("Clip", "QuantileClip", "Central", "Distributed")
}
PROGRAMS: Names = {**ALGORITHMS, "Private": privacy.Private, "RowPrivate": row_privacy.RowPrivate}
"""What may stand under ``algorithm``: an algorithm, or a private one around another."""
TASKS: Names = {name: getattr(tasks, name) for name in tasks.__all__}
ENGINES: Names = {name: getattr(engines, name) for name in engines.__all__}
PARTITIONS: Names = {
    name: getattr(partition, name)
    for name in ("iid", "shards", "k_classes", "heterogeneity", "dominant_class", "given_sizes",
                 "dirichlet", "natural")
}  # fmt: skip
DATASETS: Names = dict.fromkeys(datasets.available(), datasets.load)
STOP_RULES: Names = {name: getattr(stop, name) for name in ("Plateau", "Target", "Budget")}
ENTRY_POINTS = {
    "algorithm": "rookery.algorithms",
    "task": "rookery.tasks",
    "data": "rookery.datasets",
}
"""The entry point group of each table that may name code of other packages."""


def lookup(names: Names, table: object, where: str, folder: Path | None = None) -> Callable:
    """What the name in a table stands for.

    >>> lookup(TASKS, {"name": "quadratic"}, "task").__name__
    'quadratic'
    >>> lookup({}, {"name": "fractions:Fraction"}, "task").__name__
    'Fraction'

    Args:
        names: rookery's own.
        table: a table of an experiment file.
        where: the table's name, for errors.
        folder: where modules are looked for first: the folder of the experiment file.
    """
    name = name_of(table, where)
    if ":" in name:
        return _import(name, where, folder)
    if name in names:
        return names[name]
    declared = entry_points(where)
    if name in declared:
        return declared[name].load()
    check.one_of(where, name, [*names, *declared])
    raise AssertionError("unreachable: one_of raises for an unknown name")


def entry_points(where: str) -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points that installed packages declare for a table, by name."""
    group = ENTRY_POINTS.get(where)
    if group is None:
        return {}
    return {point.name: point for point in importlib.metadata.entry_points(group=group)}


def _import(name: str, where: str, folder: Path | None) -> Callable:
    """The object that ``module:attribute`` names."""
    module_name, _, attribute = name.partition(":")
    beside = None if folder is None else str(folder.resolve())
    if beside is not None:
        sys.path.insert(0, beside)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0]:
            raise  # the module is there, and one that it imports is not
        raise ValueError(
            f"[{where}] name {name!r}: there is no module {module_name!r} in "
            f"{beside or 'the present folder'} or on Python's path."
        ) from error
    finally:
        if beside is not None:
            sys.path.remove(beside)
    _check_origin(module_name, module.__file__, folder, where)
    thing = getattr(module, attribute, None)
    if not callable(thing):
        public = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        check.one_of(f"{where} in {module_name}", attribute, public)
        raise TypeError(f"[{where}] name {name!r} is {thing!r}, not a class or a function.")
    return thing


def _check_origin(name: str, file: str | None, folder: Path | None, where: str) -> None:
    """Raise if a module of this name was imported from elsewhere before the one beside the file."""
    if folder is None or file is None:
        return
    top = name.partition(".")[0]
    is_beside = (folder / f"{top}.py").exists() or (folder / top).is_dir()
    if is_beside and folder.resolve() not in Path(file).resolve().parents:
        raise ValueError(
            f"[{where}] the module {name!r} beside the experiment file is hidden by {file}, which "
            "was imported before. Rename one of them."
        )


def needs_data(make: Callable) -> bool:
    """Whether a task is built on a data set."""
    return "dataset" in inspect.signature(make).parameters


def check_keys(table: Mapping[str, object], valid: Collection[str], where: str) -> None:
    """Raise at the first key that is not valid, with the nearest one that is."""
    for key in table:
        check.one_of(f"key in [{where}]", key, valid)


def name_of(table: object, where: str) -> str:
    """The name in a table that stands for an object."""
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise ValueError(f"[{where}] must be a table with a name, got {table!r}.")
    return table["name"]


def make_object(
    names: Names, table: Mapping[str, object], where: str, folder: Path | None = None
) -> Any:  # of the class that the table names
    """The object that a table stands for: its name called with its other keys.

    A function that returns an Optax transformation stands for an :class:`Optimiser`, which may have
    the key ``keep`` too.

    >>> make_object(PARTS, {"name": "WithReplacement", "n": 4}, "algorithm.clients")
    WithReplacement(n=4)
    >>> table = {"name": "optax:adam", "learning_rate": 0.1, "keep": True}
    >>> make_object(PARTS, table, "algorithm.lr").name
    'Optimiser(adam)'
    >>> table = {"name": "SOBA", "outer_lr": 0.1, "inner_lr": 0.1, "batch_size": {"train": 8}}
    >>> make_object(ALGORITHMS, table, "algorithm").batch_size
    {'train': 8}
    >>> plain = {"name": "FedAvg", "lr": 0.1}
    >>> table = {"name": "Private", "algorithm": plain, "clip": 1, "noise": 1}
    >>> make_object(PROGRAMS, table, "algorithm").name
    'PrivateFedAvg'
    """
    fn = lookup(names, table, where, folder)
    may_keep = ":" in name_of(table, where) and "keep" not in inspect.signature(fn).parameters
    arguments = arguments_of(fn, table, where, extra=("keep",) if may_keep else ())
    values = {key: _value(v, f"{where}.{key}", folder) for key, v in arguments.items()}
    settings = {key: value for key, value in values.items() if key != "keep" or not may_keep}
    check_kinds(fn, settings, where)
    made = fn(**settings)
    if isinstance(made, optax.GradientTransformation):
        return Optimiser(fn, **values)  # pyright: ignore[reportArgumentType]  keep is checked
    if values != settings:
        raise ValueError(f"[{where}] keep is for optimisers, and this is a {type(made).__name__}.")
    return made


def make_stop_rules(value: object, folder: Path | None = None) -> tuple[stop.AbstractRule, ...]:
    """The rules that ``stop`` in [run] stands for: one table, or a list of them.

    >>> make_stop_rules({"name": "Plateau", "metric": "loss", "patience": 5})
    (Plateau(metric='loss', patience=5, goal=None, least=0.0),)
    """
    tables: list[Any] = value if isinstance(value, list) else [value]  # checked by make_object
    return stop.as_rules(
        tuple(make_object(STOP_RULES, table, "run.stop", folder) for table in tables)
    )


def _value(value: object, where: str, folder: Path | None) -> object:
    if isinstance(value, Mapping):
        if where.endswith(".batch_size"):
            return dict(value)  # a number for each split
        names = ALGORITHMS if where.endswith(".algorithm") else PARTS
        return make_object(names, value, where, folder)
    if isinstance(value, list):
        return tuple(_value(item, f"{where}[{i}]", folder) for i, item in enumerate(value))
    return value


def arguments_of(
    fn: Callable,
    table: Mapping[str, object],
    where: str,
    given: tuple[str, ...] = (),
    extra: tuple[str, ...] = (),
) -> dict[str, object]:
    """The keys of a table apart from its name, checked to be arguments of ``fn``.

    Args:
        fn: what will be called.
        table: a table of an experiment file.
        where: the table's name, for errors.
        given: parameters of ``fn`` that do not come from the table.
        extra: keys of the table that do not go to ``fn``.
    """
    parameters = inspect.signature(fn).parameters
    named = {
        key: parameter
        for key, parameter in parameters.items()
        if key not in given
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    arguments = {key: value for key, value in table.items() if key != "name"}
    if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_keys(arguments, {*named, *extra}, where)
    needed = [key for key, parameter in named.items() if parameter.default is parameter.empty]
    if missing := [key for key in needed if key not in arguments]:
        raise ValueError(f"[{where}] needs the key{'s' * (len(missing) > 1)} {', '.join(missing)}.")
    return arguments


def check_kinds(fn: Callable, values: Mapping[str, object], where: str) -> None:
    """Raise at the first value that is not of the kind that ``fn`` annotates.

    >>> from rookery.problem import zoo
    >>> check_kinds(zoo.quadratic_bilevel, {"rows": "many"}, "task")
    Traceback (most recent call last):
    TypeError: rows in [task] must be a whole number, got 'many'.
    """
    parameters = inspect.signature(fn).parameters
    for key, value in values.items():
        if key in parameters:
            check.typed(f"{key} in [{where}]", value, parameters[key].annotation)
