"""Whole programs on disk: a process that finds its own there neither traces nor compiles it.

JAX's cache of compiled programs is asked with the program as XLA reads it, so a process has to
trace and lower a program before it can find it there; that takes longer than reading it. A file
``traced-...`` of this store is named by what a program is traced from
(:func:`rookery.engines.code_key.fingerprint`) and by what it was made with: the source of rookery,
the packages installed, JAX's settings, and the processor. It holds the name of the program's file,
``program-...``, which is named by the program as XLA reads it: after a change of the source that
does not change a program, the program is traced and not compiled. Whatever cannot be told from one
process to the next has no file, and goes through JAX's cache alone.

The files lie among those of :mod:`rookery.engines.compile_cache`, are pruned with them, and hold
machine code: like any cache of programs, the directory must be writable by its owner only.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from rookery.engines import compile_cache
from rookery.engines.code_key import fingerprint
from rookery.types import Tree

MOST_LOADED = 16
"""Programs that a process holds; the one not called for longest is released first."""

Arrays = list[jax.Array]
Program = Callable[[Arrays, Arrays], Arrays]

_loaded: OrderedDict[Hashable, Program] = OrderedDict()


def is_on() -> bool:
    """Whether programs are kept: rookery's cache is on, and there is one device."""
    return compile_cache.own_directory() is not None and jax.local_device_count() == 1


def call(fn: Callable[[Tree, Tree], Tree], kept: Tree, donated: Tree, result: Tree) -> Tree:
    """``fn(kept, donated)``, by a program that is found, or made and kept.

    A process keeps :data:`MOST_LOADED` programs and releases the others: each takes hundreds of
    memory maps, of which Linux allows a process 65,530.

    Args:
        fn: a function of rookery, pure.
        kept: arrays are arguments of the program; all else is a constant of it.
        donated: the same; the program may overwrite these arrays.
        result: a tree with the structure of the result; where a leaf is a random key, so is that of
            the result.
    """
    inputs, constants = eqx.partition((kept, donated), eqx.is_array)
    kept_in, donated_in = (jax.tree.leaves(part) for part in inputs)
    marks = [*map(_mark, kept_in), *map(_mark, donated_in)]
    values, structure = jax.tree.flatten((inputs, constants), is_leaf=lambda a: a is None)
    fixed = tuple(v for v in values if v is not None and not eqx.is_array(v))
    key = (fn, structure, fixed, tuple(marks), str(jax.config.values))
    program = _loaded.pop(key, None)
    if program is None:
        path = _path(fn.__name__, kept, donated) if is_on() else None
        sizes = len(kept_in), len(donated_in), len(jax.tree.leaves(result))
        found = None if path is None else _read(path, *sizes)
        program = found or _made(fn, inputs, constants, path)
    _loaded[key] = program  # the last to be released
    if len(_loaded) > MOST_LOADED:
        _loaded.popitem(last=False)
    returned = program([_data(a) for a in kept_in], [_data(a) for a in donated_in])
    return _unflatten(returned, result)


def _made(
    fn: Callable[[Tree, Tree], Tree], inputs: Tree, constants: Tree, path: Path | None
) -> Program:
    """The program, traced and compiled here; the next process finds it in a file, if it has one."""

    def flat(*arguments: Arrays) -> Arrays:
        parts = tuple(map(_unflatten, arguments, inputs))
        return [_data(a) for a in jax.tree.leaves(fn(*eqx.combine(parts, constants)))]

    flat.__name__ = fn.__name__
    arguments = [[_data(a) for a in jax.tree.leaves(part)] for part in inputs]
    lowered = jax.jit(flat, donate_argnums=1).lower(*arguments)
    if path is None:
        return lowered.compile()
    code = path.parent / f"program-{_digest(lowered.as_text(), _machine())}"
    n_kept, n_donated = map(len, arguments)
    program = _load(code, n_kept, n_donated, len(jax.tree.leaves(lowered.out_info)))
    if program is None:
        program, is_new = _compiled(lowered)
        try:
            content = serialize(program)[0] if is_new else None
        except (ValueError, NotImplementedError, pickle.PicklingError, TypeError):
            # JAX refuses some programs (on a backend that cannot serialise, or with constants that
            # are arguments) by the first two, pickle by the others
            content = None
        if content is None:  # the next process compiles, or finds it in JAX's cache
            return program
        _write(code, content)
    _write(path, code.name.encode())
    return program


def _compiled(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, bool]:
    """The compiled program, and whether XLA has compiled it just now.

    XLA writes a program that came out of JAX's cache without its machine code: it could be read,
    but not called.
    """
    hits = list[str]()

    def listen(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        program = lowered.compile()
    finally:
        jax.monitoring.unregister_event_listener(listen)
    return program, not hits


def _read(path: Path, n_kept: int, n_donated: int, n_returned: int) -> Program | None:
    """The program that a file names, or None if there is none that can be read."""
    try:
        name = path.read_text(encoding="ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    program = _load(path.parent / Path(name).name, n_kept, n_donated, n_returned)
    if program is not None:
        _touch(path)
    return program


def _load(path: Path, n_kept: int, n_donated: int, n_returned: int) -> Program | None:
    """The program in a file, or None if there is none that can be read."""
    arguments = jax.tree.structure((([0] * n_kept, [0] * n_donated), {}))
    returned = jax.tree.structure([0] * n_returned)
    try:
        content = path.read_bytes()
        program = deserialize_and_load(content, arguments, returned)
    except FileNotFoundError:
        return None
    except Exception:  # a damaged file may raise anything: compile, and write it again
        return None
    _touch(path)
    return program


def _touch(path: Path) -> None:
    """The oldest files are deleted first."""
    with contextlib.suppress(OSError):  # another process has deleted it, or owns it
        os.utime(path)


def _write(path: Path, content: bytes) -> None:
    """All of the file or nothing, whatever other processes do."""
    with contextlib.suppress(OSError):  # full, read-only or gone: the next process compiles again
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            part = Path(folder, path.name)
            part.write_bytes(content)
            part.replace(path)


def _path(name: str, kept: Tree, donated: Tree) -> Path | None:
    """The file that names a program; None if other processes could not tell it from others."""
    place, traced_from = compile_cache.own_directory(), fingerprint([kept, donated])
    if place is None or traced_from is None:
        return None
    settings = repr(sorted(jax.config.values.items(), key=str))
    return place / f"traced-{_digest(name, traced_from, _source(), _machine(), settings)}"


def _digest(*words: str) -> str:
    return hashlib.blake2b("\0".join(words).encode(), digest_size=20).hexdigest()


@functools.cache
def _source() -> str:
    """A digest of rookery's code, from which programs are traced."""
    digest = hashlib.blake2b(digest_size=20)
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _machine() -> str:
    """A digest of the packages and of the machine that programs are made with."""
    digest = hashlib.blake2b(digest_size=20)
    for folder in sorted(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))):
        for entry in sorted(Path(folder).glob("*.dist-info")):
            digest.update(f"{entry.name} {entry.stat().st_mtime_ns}\n".encode())
    device = jax.devices()[0]
    about = (sys.version, platform.platform(), device.device_kind, device.client.platform_version)
    flags = sorted(f"{k}={v}" for k, v in os.environ.items() if "XLA" in k or k.startswith("JAX"))
    digest.update(repr((about, flags, _processor())).encode())
    return digest.hexdigest()


def _processor() -> str:
    """The instructions that this processor has, where the system says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _mark(leaf: jax.Array) -> tuple[Hashable, ...]:
    place = getattr(leaf, "sharding", None)
    return leaf.shape, str(leaf.dtype), getattr(leaf, "weak_type", False), place


def _data(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _unflatten(arrays: Arrays, like: Tree) -> Tree:
    """A tree of this structure, with keys where it has keys."""
    leaves, structure = jax.tree.flatten(like)
    pairs = zip(arrays, leaves, strict=True)
    return jax.tree.unflatten(
        structure,
        [
            jax.random.wrap_key_data(a, impl=jax.random.key_impl(leaf)) if _is_key(leaf) else a
            for a, leaf in pairs
        ],
    )
