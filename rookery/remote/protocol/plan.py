"""The calls of an algorithm: its steps with their settings and the shapes that go in and out."""

import hashlib
import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.clients.local_client import LocalClient
from rookery.clients.population import Population
from rookery.program.step import Step, traced_loop
from rookery.remote.protocol import wire
from rookery.runner.describe import describe
from rookery.types import Tree


@dataclass(frozen=True)
class TracedSetting:
    """A number among the settings that is not known before the run, and is sent with the call."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """A step with its settings and the shapes of what goes in and comes out.

    Attributes:
        number: its place in the plan.
        name: the step's module and name.
        step: the step.
        arguments: shapes and types of its values, for one client.
        reply: shapes and types of what it returns.
        settings: leaves of the settings; ``TracedSetting`` for those that are sent.
        structure: of the settings.
        has_key: whether the step draws random numbers.
    """

    number: int
    name: str
    step: Step
    arguments: tuple[Tree, ...]
    reply: Tree
    settings: tuple[Any, ...]
    structure: Any
    has_key: bool
    _compiling: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _warm: set[tuple[int, int]] = field(default_factory=set, repr=False)

    @cached_property
    def wanted(self) -> list[str]:
        """Types and shapes of the leaves of its values."""
        return specs(self.arguments)

    @cached_property
    def travelling(self) -> list[TracedSetting]:
        """The settings that are sent, in order."""
        return [leaf for leaf in self.settings if isinstance(leaf, TracedSetting)]

    def run(self, population: Population, inputs: Sequence["Inputs"]) -> list[tuple[list, Any]]:
        """The leaves of the reply and the work of each client; compiled once and kept warm.

        Args:
            population: with the rows of these clients.
            inputs: one for each client. Several go through one vmap.
        """
        kind = id(population), len(inputs)
        if kind in self._warm:  # a hint: whoever is wrong about it waits, or compiles too
            return self._run(population, inputs)
        with self._compiling:  # clients in one process would all compile it at once
            out = self._run(population, inputs)
            self._warm.add(kind)
            return out

    def _run(self, population: Population, inputs: Sequence["Inputs"]) -> list[tuple[list, Any]]:
        if len(inputs) == 1:  # keeps real branches and loops, which a vmap would turn into selects
            return [self._alone(population, inputs[0])]
        # stacked before the call and divided after it: in it, every client would be more to compile
        stacked = jax.tree.map(lambda *one: np.stack(one), *inputs)
        replies, work = jax.tree.map(np.asarray, self._together(population, stacked))
        rows = range(len(inputs))
        return [(jax.tree.map(lambda a, i=i: a[i], replies), work[i]) for i in rows]

    @cached_property
    def _alone(self):
        return jax.jit(self._one)

    @cached_property
    def _together(self):
        return jax.jit(jax.vmap(self._one, in_axes=(None, 0)))

    def _one(self, population: Population, inputs: "Inputs") -> tuple[list, Any]:
        key, values = wire.wrapped(inputs.key), [wire.wrapped(value) for value in inputs.values]
        for number in inputs.folds:
            key = jax.random.fold_in(key, number)
        sent = iter(inputs.numbers)
        leaves = [next(sent) if isinstance(s, TracedSetting) else s for s in self.settings]
        settings = jax.tree.unflatten(self.structure, leaves)
        arguments = jax.tree.unflatten(jax.tree.structure(self.arguments), values)
        client = LocalClient(population, inputs.id, key, traced_loop)
        reply = self.step(client, *arguments, **settings)
        work = jnp.stack([jnp.asarray(w).astype(jnp.uint32) for w in client.work])
        return [wire.unwrapped(jnp.asarray(leaf)) for leaf in jax.tree.leaves(reply)], work


class Inputs(NamedTuple):
    """What one client puts into a call.

    Attributes:
        id: the client.
        key: of the step, as it travels.
        folds: numbers to fold into the key, in order, which make it the client's own.
        values: leaves of the arguments.
        numbers: settings that came along.
    """

    id: np.int32
    key: wire.Keys | None
    folds: tuple[np.uint32, ...]
    values: list[Any]
    numbers: list[Any]


class Plan:
    """All calls of an algorithm, in the order of its first rehearsal."""

    def __init__(self, calls: Sequence[Call]):
        self.calls = tuple(calls)

    def find(self, step: Step, arguments: list, settings: dict, has_key: bool) -> tuple[Call, list]:
        """The call that a step with such values is, and its settings that have to be sent.

        Args:
            step: the step.
            arguments: leaves with ``shape`` and ``dtype``, for one client.
            settings: by keyword.
            has_key: whether it has a key.
        """
        leaves, structure = jax.tree.flatten(settings)
        name = step_name(step)
        for call in self.calls:
            if (call.name, call.has_key, call.structure) != (name, has_key, structure):
                continue
            if call.wanted != [spec(leaf) for leaf in arguments]:
                continue
            if all(_fits(want, leaf) for want, leaf in zip(call.settings, leaves, strict=True)):
                sent = [
                    np.asarray(leaf, want.dtype)
                    for want, leaf in zip(call.settings, leaves, strict=True)
                    if isinstance(want, TracedSetting)
                ]
                return call, sent
        raise ValueError(
            f"the rehearsal of a round met no call of {name} with values "
            f"{[spec(leaf) for leaf in arguments]} and these settings. Which steps a round makes, "
            "and on which shapes, must not depend on the numbers that it meets."
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all calls, that two sides must have in common."""
        content = [
            [call.name, call.wanted, specs(call.reply), call.has_key, _described(call)]
            for call in self.calls
        ]
        return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:16]


def step_name(step: Step) -> str:
    """The name that both sides know a step by."""
    return f"{step.__module__}.{step.__qualname__}"


def spec(leaf: Any) -> str:
    """Type and shape of one array."""
    return _spec(leaf.dtype, tuple(leaf.shape))


@lru_cache(10_000)
def _spec(dtype: Any, shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}"


@lru_cache(10_000)
def spec_nbytes(spec: str) -> int:
    """Bytes of an array of some type and shape, at most."""
    name, _, axes = spec.partition("[")
    size = 16 if name.startswith("key<") else jnp.dtype(name).itemsize  # the longest keys
    return size * math.prod(json.loads(f"[{axes}"))


def specs(tree: Tree) -> list[str]:
    """Types and shapes of all arrays of a tree."""
    return [spec(leaf) for leaf in jax.tree.leaves(tree)]


def struct_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Type and shape of a number or an array, for JAX."""
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype)


def is_same(a: Call, b: Call) -> bool:
    """Whether two calls differ in nothing but their place."""
    if (a.name, a.has_key, a.structure) != (b.name, b.has_key, b.structure):
        return False
    if a.wanted != b.wanted:
        return False
    return all(_fits(u, w) for u, w in zip(a.settings, b.settings, strict=True))


def _fits(want: Any, leaf: Any) -> bool:
    """Whether a setting is the rehearsed one, or a number that is sent in its place."""
    if isinstance(want, TracedSetting):
        if isinstance(leaf, TracedSetting):
            return want == leaf
        is_number = isinstance(leaf, int | float | np.ndarray | np.generic | jax.Array)
        return is_number and np.shape(leaf) == want.shape
    if want is leaf:
        return True
    arrays = np.ndarray | jax.Array
    if isinstance(want, arrays) and isinstance(leaf, arrays):
        return want.dtype == leaf.dtype and np.array_equal(want, leaf)
    return type(want) is type(leaf) and bool(want == leaf)


def _described(call: Call) -> Any:
    return describe(jax.tree.unflatten(call.structure, call.settings))
