"""Compiled programs on disk, so that the next process need not compile them again.

JAX has such a cache and leaves it off. :func:`turn_on` turns it on in the user's cache directory,
when an engine is about to compile; importing rookery changes no setting. If you have set JAX's own
``jax_compilation_cache_dir`` (or ``JAX_COMPILATION_CACHE_DIR``), that is kept, and the environment
variable ``ROOKERY_COMPILE_CACHE`` names another directory, or turns the cache off.

Processes may share the directory: an entry is named by a digest of its program, of JAX's version
and of the devices, and JAX compiles again what it cannot read.
"""

import functools
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import jax

VARIABLE = "ROOKERY_COMPILE_CACHE"
OFF = "off"

MOST_BYTES = 2**30
"""The oldest programs beyond this size are deleted when a process turns the cache on."""

LEAST_SECONDS = 0.0
"""Small programs are kept too: before its first round a run compiles dozens of them."""

_JAX_LEAST_SECONDS = 1.0  # JAX's own default of LEAST_SECONDS


def directory(environ: Mapping[str, str]) -> Path | None:
    """Where compiled programs are kept; None if the cache is off.

    >>> directory({"ROOKERY_COMPILE_CACHE": "off"})
    >>> directory({"XDG_CACHE_HOME": "/cache"}).as_posix()
    '/cache/rookery/compiled'
    """
    named = environ.get(VARIABLE)
    if named:
        return None if named.lower() in (OFF, "0") else Path(named)
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rookery" / "compiled"


def own_directory() -> Path | None:
    """Where rookery keeps programs now; None if it is off, or if the user keeps JAX's elsewhere."""
    place = directory(os.environ)
    is_used = place is not None and _setting("jax_compilation_cache_dir") == str(place)
    return place if is_used and _setting("jax_enable_compilation_cache") else None


@functools.cache  # once per process
def turn_on() -> None:
    """Let JAX keep compiled programs, unless the user has decided about its cache."""
    place = directory(os.environ)
    is_decided = _setting("jax_compilation_cache_dir") is not None
    if place is None or is_decided or not _setting("jax_enable_compilation_cache"):
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        prune(place, MOST_BYTES)
    except OSError as error:
        warnings.warn(
            f"compiled programs cannot be kept in {place}: {error}. Every process will compile "
            f"again. Set {VARIABLE} to a directory that can be written, or to {OFF!r}.",
            stacklevel=2,
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    if _setting("jax_persistent_cache_min_compile_time_secs") == _JAX_LEAST_SECONDS:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)


def prune(place: Path, most: int) -> None:
    """Delete the oldest files of a directory until the others have at most ``most`` bytes.

    Empty files go as well: a process that was killed while it wrote may leave one. Another process
    may delete the same files at the same time.
    """
    kept = 0
    for _, size, path in sorted(_files(place), reverse=True):
        kept += size
        if kept > most or not size:
            path.unlink(missing_ok=True)


def _setting(name: str) -> object:
    return getattr(jax.config, name)


def _files(place: Path) -> list[tuple[float, int, Path]]:
    found = []
    for path in place.iterdir():
        try:
            about = path.stat()
        except FileNotFoundError:  # deleted by another process
            continue
        if path.is_file():
            found.append((about.st_mtime, about.st_size, path))
    return found
