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
from rookery.runner.documents import Json, read_summary, require_file
from rookery.types import Tree

FILES = {"last": "solution.safetensors", "best": "best.safetensors"}
"""The files of a run directory, by what they hold."""
OWN_FILE = "own.safetensors"
"""The clients' own leaves of the last iterate, a row per client; only if the algorithm has any."""


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


def save_own(
    directory: Path,
    own: tuple[Tree, ...],
    solution: tuple[Tree, ...],
    variables: Sequence[str],
    clients: Sequence[str] | None,
    round: int,
) -> None:
    """Write the clients' own leaves into a run directory, atomically.

    Args:
        directory: the run directory.
        own: a row per client of every own leaf, with None in place of every shared leaf.
        solution: the problem's variables, whose names the rows get.
        variables: their names.
        clients: names of the clients; None if they have none.
        round: after how many rounds.
    """
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(solution)]
    names = dict(zip(paths, _named(solution, variables), strict=True))
    arrays = {
        names[jax.tree_util.keystr(path)]: np.asarray(rows, order="C")
        for path, rows in jax.tree.leaves_with_path(own)
    }
    note = {"round": round, "clients": None if clients is None else list(clients)}
    write_arrays(directory / OWN_FILE, arrays, note)


def remove_solutions(directory: Path) -> None:
    """Remove what an earlier end of the run left."""
    for name in (*FILES.values(), OWN_FILE):
        (directory / name).unlink(missing_ok=True)


def load_solution(
    directory: str | Path,
    like: tuple[Tree, ...],
    *,
    which: Literal["last", "best"] = "last",
    client: int | str | None = None,
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
        client: name or number of a client, for its personal model: the shared leaves with its own,
            after a run with ``own=``. Only of the last iterate. None gives the clients' mean.
    """
    check.one_of("which", which, FILES)
    if client is not None and which != "last":
        raise ValueError(
            "client needs which='last': the clients' own leaves are kept of the last iterate only."
        )
    path = Path(directory) / FILES[which]
    if not path.exists():
        raise FileNotFoundError(_why_missing(path, which))
    arrays, note = _read(path)
    if client is not None:
        arrays |= _own_arrays(path.parent / OWN_FILE, client)
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


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Json]]:
    """The arrays of a file by name, and the note with them."""
    require_file(path)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            note = json.loads((file.metadata() or {})["rookery"])
            return {name: file.get_tensor(name) for name in file.keys()}, note
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a solution of rookery: {error}") from error


def _own_arrays(path: Path, client: int | str) -> dict[str, np.ndarray]:
    """The own leaves of one client, by name."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: the run had no own=, its clients share the whole solution. "
            "Leave out client."
        )
    rows, note = _read(path)
    n_clients = len(next(iter(rows.values())))
    names = note["clients"] or [f"client {i}" for i in range(n_clients)]
    if isinstance(client, str):
        number = names.index(check.one_of("client", client, names))
    else:
        number = check.count("client", client, least=0)
        if number >= n_clients:
            raise ValueError(
                f"client must be below {n_clients}, the number of clients; got {client}."
            )
    return {name: values[number] for name, values in rows.items()}


def _why_missing(path: Path, which: str) -> str:
    if not (path.parent / "config.json").exists():
        return f"{path.parent} is not a run directory: it has no config.json."
    content = read_summary(path.parent)
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
