"""The solution of a run as a safetensors file beside it, for use elsewhere."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from rookery import check
from rookery.runner.checkpoint import write_arrays
from rookery.types import Tree

FILES = {"last": "solution.safetensors", "best": "best.safetensors"}
"""The files of a run directory, by what they hold."""


def save_solution(
    directory: Path,
    which: Literal["last", "best"],
    solution: tuple[Tree, ...],
    variables: Sequence[str],
    round: int,
) -> None:
    """Write a solution into a run directory, atomically.

    Args:
        directory: the run directory.
        which: the last iterate or the best.
        solution: the problem's variables.
        variables: their names.
        round: after how many rounds.
    """
    named = _named(solution, variables)
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in named.items()}
    write_arrays(directory / FILES[which], arrays, {"round": round, "variables": list(variables)})


def remove_solutions(directory: Path) -> None:
    """Remove what an earlier end of the run left."""
    for name in FILES.values():
        (directory / name).unlink(missing_ok=True)


def load_solution(
    directory: str | Path, like: tuple[Tree, ...], *, which: Literal["last", "best"] = "last"
) -> tuple[Tree, ...]:
    """The solution that a run has left in its directory.

    >>> import tempfile
    >>> import rookery as rk
    >>> zoo, directory = rk.zoo.scalar_bilevel(), tempfile.mkdtemp()
    >>> population = rk.Population.stacked(zoo.data)
    >>> fednest = rk.FedNest(outer_lr=0.2, inner_lr=0.3)
    >>> result = rk.run(
    ...     fednest, zoo.problem, population, zoo.start, rounds=2, directory=directory
    ... )
    >>> x, y = rk.load_solution(directory, like=zoo.start)
    >>> bool((x == result.solution[0]).all())
    True

    Args:
        directory: the run directory.
        like: variables of the same structure, shapes and types, such as the run's start.
        which: the ``last`` iterate, or the ``best`` of a run with ``keep=``.
    """
    check.one_of("which", which, FILES)
    path = Path(directory) / FILES[which]
    if not path.exists():
        raise FileNotFoundError(_why_missing(path, which))
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            note = json.loads((file.metadata() or {})["rookery"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a solution of rookery: {error}") from error
    variables = note["variables"]
    if not isinstance(like, tuple | list) or len(like) != len(variables):
        raise ValueError(
            f"like must be a tuple with one value per variable, ({', '.join(variables)}"
            f"{',' * (len(variables) == 1)}), as the run's start; got {type(like).__name__}"
            f"{f' of {len(like)}' if isinstance(like, tuple | list) else ''}."
        )
    wanted = _named(tuple(like), variables)
    if missing := sorted(set(wanted) ^ set(arrays)):
        raise ValueError(
            f"{path} has another structure than like: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} in one of them only. It holds "
            f"{', '.join(sorted(arrays))}."
        )
    for name, leaf in wanted.items():
        got, want = arrays[name], jnp.asarray(leaf)
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            hint = " Enable 64-bit numbers in JAX to read it." if got.dtype == np.float64 else ""
            raise ValueError(
                f"{path}: {name} is {got.dtype}{list(got.shape)}, like has {want.dtype}"
                f"{list(want.shape)}.{hint if got.dtype != want.dtype else ''}"
            )
    leaves = [jnp.asarray(arrays[name]) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(tuple(like)), leaves)


def _why_missing(path: Path, which: str) -> str:
    if not (path.parent / "config.json").exists():
        return f"{path.parent} is not a run directory: it has no config.json."
    summary = path.parent / "summary.json"
    content = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
    if which == "best":
        return f'{path} does not exist: the run has not ended, or had no keep="best:METRIC".'
    if content.get("status") == "diverged":
        return f"{path} does not exist: the run diverged. {content['message']}"
    return f"{path} does not exist: the run has not ended. The same call of rk.run resumes it."


def _named(solution: tuple[Tree, ...], variables: Sequence[str]) -> dict[str, jax.Array]:
    """The arrays of a solution by name, as ``x`` or ``y.layers.0.weight``.

    >>> list(_named((np.zeros(1), {"w": np.zeros(1), "b": [np.zeros(1)]}), ("x", "y")))
    ['x', 'y.b.0', 'y.w']
    """
    paths = jax.tree_util.tree_flatten_with_path(solution)[0]

    def names(*, simple: bool) -> list[str]:
        separator = "." if simple else ""
        rest = [jax.tree_util.keystr(p[1:], simple=simple, separator=separator) for p, _ in paths]
        first = [str(variables[p[0].idx]) for p, _ in paths]
        return [a + separator * bool(b) + b for a, b in zip(first, rest, strict=True)]

    short = names(simple=True)
    # a key with a dot in it can make two short names equal
    unique = short if len(set(short)) == len(short) else names(simple=False)
    return dict(zip(unique, (leaf for _, leaf in paths), strict=True))
