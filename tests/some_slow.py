"""Cases of a parametrised test of which `make test` runs a few, and `make test-slow` the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def some_slow(cases: Iterable[Any], quick: int = 1) -> list[Any]:
    """The first ``quick`` cases as they are, the others marked as slow; a tuple is one case."""
    cases = list(cases)
    slow = [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases[quick:]
    ]
    return [*cases[:quick], *slow]
