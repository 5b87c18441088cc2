"""Interpreters of the same program."""

from rookery.engines.compiled import Compiled as Compiled
from rookery.engines.eager import Eager as Eager

__all__ = ["Compiled", "Eager"]
