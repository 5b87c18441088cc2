"""Checkpoints: the state of a run as a safetensors file, written atomically."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from rookery.program.ledger import Ledger
from rookery.runner.atomic_file import make_directory, replace_file
from rookery.runner.best import Best
from rookery.runner.documents import require_file
from rookery.runner.guard import GuardState
from rookery.runner.history import NOTHING, Extent
from rookery.types import Tree

KEPT = 2
"""How many checkpoints stay on disk: a second one, in case the newest is damaged."""

_NAME = re.compile(r"round-[0-9]{9,}\.safetensors")
# before the names of arrays of the best solution, of the state that the guard would go back to, and
# of the variables at its last check; no name of a state begins so
_BEST, _GOOD, _BEFORE, _TOP = "best:", "good:", "before:", "top:"


@dataclass(frozen=True)
class Checkpoint:
    """A run after ``round`` rounds, and how far its files of measurements reached."""

    round: int
    state: Tree
    ledger: Ledger
    history: Extent = NOTHING
    per_client: Extent = NOTHING
    best: Best | None = None
    guard_state: GuardState | None = None


def save(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and remove all but the newest ``KEPT``."""
    make_directory(directory)
    leaves, best = _named_leaves(checkpoint.state), checkpoint.best
    if best is not None:
        leaves += [(_BEST + name, leaf) for name, leaf in _named_leaves(best.solution)]
    own = {id(leaf): name for name, leaf in leaves}
    same = {}  # arrays of the guard that are the state's own, by name
    if checkpoint.guard_state is not None:
        for name, leaf in _leaves_of(checkpoint.guard_state):
            if id(leaf) in own:
                same[name] = own[id(leaf)]
            else:
                leaves.append((name, leaf))
    arrays, types = {}, {}
    for name, leaf in leaves:
        arrays[name], types[name] = _to_plain(leaf)
    note = {
        "round": checkpoint.round,
        "ledger": checkpoint.ledger.as_dict(),
        "history": asdict(checkpoint.history),
        "per_client": asdict(checkpoint.per_client),
        "types": types,
    }
    if best is not None:
        note["best"] = {"metric": best.metric, "round": best.round, "value": best.value}
    if checkpoint.guard_state is not None:
        note["guard"] = {"same": same, **checkpoint.guard_state.as_note()}
    note["sha256"] = _digest(arrays, note)
    path = directory / f"round-{checkpoint.round:09d}.safetensors"
    write_arrays(path, arrays, note)
    for old in _files(directory)[:-KEPT]:
        old.unlink()
    return path


def write_arrays(path: Path, arrays: dict[str, np.ndarray], note: dict[str, object]) -> None:
    """Write arrays and a note, which must be fit for JSON, as one safetensors file, atomically."""
    content = safetensors.numpy.save(arrays, metadata={"rookery": json.dumps(note)})
    replace_file(path, content)


def remove_after(directory: Path, round: int) -> None:
    """Remove the checkpoints of later rounds; the resumed run writes them again."""
    for path in _files(directory):
        if int(path.stem.removeprefix("round-")) > round:
            path.unlink()


def has_checkpoints(directory: Path) -> bool:
    """Whether a folder has any checkpoint, damaged or not."""
    return bool(_files(directory))


def load_all(
    directory: Path, like: Tree, solution: tuple[Tree, ...] = ()
) -> tuple[list[Checkpoint], list[str]]:
    """All readable checkpoints, newest first, and a warning for each damaged one.

    Args:
        directory: the folder of checkpoints.
        like: a state of the expected structure.
        solution: a solution of the structure of the best one, if there is one.
    """
    found, warnings = [], []
    for path in reversed(_files(directory)):
        try:
            found.append(_load(path, like, solution))
        except Exception as error:  # whatever a file holds, one that cannot be read is skipped
            warnings.append(f"{path} is damaged ({error}); it is skipped.")
    return found, warnings


def _load(path: Path, like: Tree, solution: tuple[Tree, ...]) -> Checkpoint:
    require_file(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        note = json.loads((file.metadata() or {})["rookery"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}
    if _digest(arrays, note) != note["sha256"]:
        raise ValueError("checksum mismatch")
    state = _tree(arrays, note["types"], like, "")
    best = None
    if "best" in note and solution:
        best = Best(**note["best"], solution=_tree(arrays, note["types"], solution, _BEST))
    guard_state = None
    if "guard" in note and solution:
        same, types = note["guard"]["same"], note["types"]
        arrays |= {name: arrays[other] for name, other in same.items()}
        types |= {name: types[other] for name, other in same.items()}
        good = _tree(arrays, types, like, _GOOD)
        before = _tree(arrays, types, solution, _BEFORE)
        has_top = note["guard"]["top"] is not None
        top = _tree(arrays, types, like, _TOP) if has_top else None
        guard_state = GuardState.of_note(note["guard"], good, before, top)
    return Checkpoint(
        note["round"],
        state,
        Ledger(**note["ledger"]),
        Extent(**note["history"]),
        Extent(**note["per_client"]),
        best,
        guard_state,
    )


def _leaves_of(guard_state: GuardState) -> list[tuple[str, jax.Array]]:
    trees = {_GOOD: guard_state.good.state, _BEFORE: guard_state.before.state}
    if guard_state.top is not None:
        trees[_TOP] = guard_state.top.state
    return [(p + name, leaf) for p, tree in trees.items() for name, leaf in _named_leaves(tree)]


def _tree(arrays: dict[str, np.ndarray], types: dict[str, str], like: Tree, prefix: str) -> Tree:
    """The arrays whose names begin with a prefix, in the structure of ``like``."""
    expected = [(prefix + name, leaf) for name, leaf in _named_leaves(like)]
    prefixes = (_BEST, _GOOD, _BEFORE, _TOP)
    own = {n for n in arrays if (n.startswith(prefix) if prefix else not n.startswith(prefixes))}
    if own != {name for name, _ in expected}:
        raise ValueError(f"it holds {sorted(own)}, which is not this algorithm's state")
    leaves = [_from_plain(arrays[name], types[name]) for name, _ in expected]
    for (name, want), got in zip(expected, leaves, strict=True):
        if want.shape != got.shape or want.dtype != got.dtype:
            raise ValueError(
                f"{name} is {got.dtype}{list(got.shape)}, wanted {want.dtype}{list(want.shape)}"
            )
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.glob("round-*.safetensors") if _NAME.fullmatch(p.name))


def _named_leaves(tree: Tree) -> list[tuple[str, jax.Array]]:
    return [
        (jax.tree_util.keystr(path) or "value", leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def _to_plain(leaf: jax.Array) -> tuple[np.ndarray, str]:
    """An array of a plain NumPy type, and the name of its original type."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf)), f"key<{jax.random.key_impl(leaf)}>"
    array = np.asarray(leaf, order="C")
    if array.dtype == jnp.bfloat16:
        return array.view(np.uint16), "bfloat16"
    return array, str(array.dtype)


def _from_plain(array: np.ndarray, type_name: str) -> jax.Array:
    """The array that :func:`to_plain` was given."""
    if type_name.startswith("key<"):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=type_name[4:-1])
    if type_name == "bfloat16":
        return jnp.asarray(array.view(jnp.bfloat16))
    return jnp.asarray(array)


def _digest(arrays: dict[str, np.ndarray], note: dict[str, object]) -> str:
    """A digest of the arrays and of all of the note but the digest itself."""
    signed = {name: value for name, value in note.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(signed, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
