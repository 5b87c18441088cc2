"""Settings that several functions share: written once, and shown by all of them."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import TypeVar, cast

Function = TypeVar("Function", bound=Callable)


def expands(shared: Callable) -> Callable[[Function], Function]:
    """Show the keyword-only parameters of ``shared`` in place of ``**settings``.

    ``help()`` and experiment files then know every setting by its name, and a mistake is an error
    of the function that was called.

    >>> def base(*, seed: int = 0): ...
    >>> @expands(base)
    ... def make(*, size: int = 3, **settings): ...
    >>> str(inspect.signature(make))
    '(*, size: int = 3, seed: int = 0)'
    >>> make(sed=1)
    Traceback (most recent call last):
    TypeError: make has no argument 'sed'. Did you mean 'seed'? Valid: size, seed.
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

        @functools.wraps(function)
        def checked(*args: object, **settings: object) -> object:
            _check_names(function.__qualname__, shown, settings)
            try:
                shown.bind(*args, **settings)
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}: {error}.") from None
            return function(*args, **settings)

        checked.__signature__ = shown  # pyright: ignore[reportAttributeAccessIssue]
        return cast(Function, checked)

    return decorate


def _check_names(function: str, shown: inspect.Signature, settings: dict[str, object]) -> None:
    valid = [p.name for p in shown.parameters.values() if p.kind is not p.POSITIONAL_ONLY]
    for name in settings:
        if name not in valid:
            near = difflib.get_close_matches(name, valid, n=1, cutoff=0.4)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(v for v in valid if v != "cls")
            raise TypeError(f"{function} has no argument {name!r}.{hint} Valid: {known}.")
