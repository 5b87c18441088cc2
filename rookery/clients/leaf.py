"""Data sets in the form of LEAF: JSON files of users, each with inputs ``x`` and labels ``y``.

S. Caldas et al. LEAF: a benchmark for federated settings. arXiv:1812.01097. LEAF's scripts sample
users and rows at random and write ``train/*.json`` and ``test/*.json``, so the files of two people
differ, and no checksum is published for them. LEAF also writes the checksums of its output to
``meta/dir-checksum.md5``; where that file lies beside the data, every file must agree with it.
"""

import hashlib
import json
import string
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from rookery.clients.dataset_readers import Raw, Rows

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""The classes of FEMNIST, in LEAF's order."""
VOCABULARY = tuple(
    "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]"
    + string.ascii_lowercase + "}"
)  # fmt: skip
"""The 80 characters of Shakespeare, in LEAF's order: inputs and labels are their numbers."""

Decode = Callable[[Sequence[object], Sequence[object], str], Raw]
"""From the lists ``x`` and ``y`` of a user, and what errors call the user, to arrays."""


def read_femnist(files: list[Path]) -> Rows:
    """Handwritten characters by writer; an image has the axes [28, 28, 1] and white paper at 1."""
    return _read(files, _images)


def read_shakespeare(files: list[Path]) -> Rows:
    """Windows of text by speaking role, and the character that follows each."""
    return _read(files, _windows)


def _read(files: list[Path], decode: Decode) -> Rows:
    sums = _checksums(files)
    found: dict[str, dict[str, list[Raw]]] = {"train": {}, "test": {}}
    for file in files:
        for user, x, y in _users(file):
            raw = decode(x, y, f"{file}, user {user!r}")
            found[file.parent.name].setdefault(user, []).append(raw)
    names = sorted(found["train"])
    per_user = [sum(len(y) for _, y in found["train"][user]) for user in names]
    return Rows(
        _joined([raw for user in names for raw in found["train"][user]]),
        _joined([raw for parts in found["test"].values() for raw in parts]),
        np.repeat(np.arange(len(names)), per_user),
        tuple(names),
        "the checksums that LEAF wrote" if sums else "their structure; no checksum is published",
    )


def _users(file: Path) -> Iterator[tuple[str, list[object], list[object]]]:
    """The users of a file with their inputs and labels, checked to be complete."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # of the encoding too
        raise ValueError(f"{file} is not JSON: {error}. Run LEAF's preprocess.sh again.") from error
    needed = {"users": list, "num_samples": list, "user_data": dict}
    for key, kind in needed.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise ValueError(
                f"{file} is not in LEAF's form: it needs {', '.join(needed)}, and {key} is missing "
                "or of another type."
            )
    users, sizes, data = (content[key] for key in needed)
    if len(users) != len(sizes):
        raise ValueError(f"{file} has {len(users)} users and {len(sizes)} num_samples.")
    for user, size in zip(users, sizes, strict=True):
        own = data.get(user)
        x, y = (own.get("x"), own.get("y")) if isinstance(own, dict) else (None, None)
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == size:
            raise ValueError(
                f"{file}, user {user!r}: user_data needs {size} entries in each of the lists x and "
                f"y, as num_samples says; got {_size(x)} and {_size(y)}."
            )
        if size:
            yield user, x, y


def _size(entries: object) -> int | str:
    return len(entries) if isinstance(entries, list) else "no list"


def _images(x: Sequence[object], y: Sequence[object], where: str) -> Raw:
    images, labels = np.asarray(x, np.float32), np.asarray(y)
    if images.shape[1:] != (784,) or images.min() < 0 or images.max() > 1:
        raise ValueError(
            f"{where}: an image must be 784 numbers from 0 to 1, got {list(images.shape)} from "
            f"{images.min()} to {images.max()}."
        )
    _check_labels(labels, len(CHARACTERS), where)
    return images.reshape(-1, 28, 28, 1), labels


def _check_labels(labels: np.ndarray, n: int, where: str) -> None:
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= n:
        raise ValueError(f"{where}: labels must be whole numbers from 0 to {n - 1}, got {labels}.")


def _windows(x: Sequence[object], y: Sequence[object], where: str) -> Raw:
    return _tokens(x, where), _tokens(y, where, length=1)[:, 0]


def _tokens(
    texts: Sequence[object], where: str, length: int | None = None
) -> Int[np.ndarray, "_ _"]:
    """Numbers of characters, one row per text; all texts must have the same length."""
    known = [text for text in texts if isinstance(text, str)]
    if len(known) < len(texts):
        raise TypeError(f"{where}: x and y must be lists of text.")
    lengths = {len(text) for text in known}
    if len(lengths) > 1 or length not in (None, *lengths) or 0 in lengths:
        wanted = "one length" if length is None else f"{length} character"
        raise ValueError(
            f"{where}: texts must have {wanted}, got {sorted(lengths)} characters. LEAF's windows "
            "have 80 and its labels 1; shorter text is padded with blanks on the left."
        )
    codes = np.frombuffer("".join(known).encode("utf-32-le"), np.uint32)
    number = np.full(max(256, int(codes.max()) + 1), -1, np.int32)
    number[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))
    tokens = number[codes]
    if np.any(tokens < 0):
        unknown = chr(int(codes[np.argmax(tokens < 0)]))
        raise ValueError(
            f"{where}: the character {unknown!r} is not one of LEAF's {len(VOCABULARY)}. Remove or "
            "replace it in the text that the files were made from."
        )
    return tokens.reshape(len(texts), -1)


def _joined(parts: list[Raw]) -> Raw:
    shapes = {x.shape[1:] for x, _ in parts}
    if len(shapes) != 1:
        raise ValueError(
            f"inputs of all users must have one shape, got {sorted(shapes) or 'no rows'}."
        )
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _checksums(files: list[Path]) -> dict[str, str]:
    """The checksums beside the files, by folder and name, compared with the files; empty if none.

    LEAF's own tree is ``meta/dir-checksum.md5`` beside ``data/train`` and ``data/test``.
    """
    places = [files[0].parents[depth] / "meta" / "dir-checksum.md5" for depth in (1, 2)]
    source = next((place for place in places if place.is_file()), None)
    if source is None:
        return {}
    lines = [line.split(maxsplit=1) for line in source.read_text().splitlines() if line.strip()]
    sums = {"/".join(Path(path).parts[-2:]): digest for digest, path in lines}
    for file in files:
        wanted = sums.get(f"{file.parent.name}/{file.name}")
        with file.open("rb") as stream:
            got = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
        if got.hexdigest() != wanted:
            raise ValueError(
                f"{file} is not the file that LEAF wrote: its md5 is {got.hexdigest()}, wanted "
                f"{wanted or 'none, for it is not listed'} by {source}. Run LEAF's preprocess.sh "
                "again, or remove the list if you have changed the data."
            )
    return sums


def ink(x: Float[np.ndarray, "..."], _: np.ndarray) -> Float[np.ndarray, "..."]:
    """Ink at 1 on paper at 0."""
    return 1 - x
