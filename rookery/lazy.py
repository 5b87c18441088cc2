"""Names of a package that are imported when they are first used.

A package writes its imports once, for type checkers, and passes its name::

    if TYPE_CHECKING:
        from rookery.algorithms.fedavg import FedAvg as FedAvg
    else:
        __getattr__ = names_of(__name__)

Importing the package then loads none of its modules, which takes most of the time for those that a
program never uses.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module


def names_of(package: str) -> Callable[[str], object]:
    """The ``__getattr__`` of a package, by the imports under its ``if TYPE_CHECKING``.

    >>> names_of("rookery")("FedAvg").__name__
    'FedAvg'
    """
    module = sys.modules[package]
    assert module.__spec__ is not None
    source = getattr(module.__spec__.loader, "get_source", lambda _: None)(package)
    if source is None:
        raise ImportError(
            f"the source of {package} is missing, which says where its names are. Install rookery "
            "with its .py files."
        )
    places = dict(_imports(ast.parse(source)))

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        whence, original = places[name]
        # as the statement does: an attribute of the module, otherwise a module within it
        value = None if whence == package else getattr(import_module(whence), original, None)
        value = import_module(f"{whence}.{original}") if value is None else value
        setattr(module, name, value)
        return value

    return get


def _imports(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Of every name, the module or package that has it and its name there."""
    for block in tree.body:
        if isinstance(block, ast.If) and getattr(block.test, "id", None) == "TYPE_CHECKING":
            for node in block.body:
                assert isinstance(node, ast.ImportFrom) and node.module is not None
                for alias in node.names:
                    yield alias.asname or alias.name, (node.module, alias.name)
