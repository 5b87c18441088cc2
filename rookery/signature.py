"""Settings that several functions share: written once, and shown by all of them."""

import inspect
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)


def expands(shared: Callable) -> Callable[[Function], Function]:
    """Show the keyword-only parameters of ``shared`` in place of ``**settings``.

    ``help()`` and experiment files then know every setting by its name.

    >>> def base(*, seed: int = 0): ...
    >>> @expands(base)
    ... def make(*, size: int = 3, **settings): ...
    >>> str(inspect.signature(make))
    '(*, size: int = 3, seed: int = 0)'
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        also = [
            p
            for p in inspect.signature(shared).parameters.values()
            if p.kind is p.KEYWORD_ONLY and p.name not in signature.parameters
        ]
        shown = signature.replace(parameters=[*own, *also])
        function.__signature__ = shown  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return decorate
