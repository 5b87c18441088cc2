"""The plan of an algorithm: every client step of a round, with its settings and shapes."""

import hashlib
import json
import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from rookery.clients.local_client import Bounds, Count, Draw, Evaluations, LocalClient
from rookery.clients.population import Population
from rookery.program.step import Step, traced_loop
from rookery.remote.protocol import wire
from rookery.remote.protocol.secure import SecureAggregation
from rookery.runner.describe import describe
from rookery.types import Tree


class HasShape(Protocol):
    """An array, its shape and type alone, or a remote value."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> wire.DType:
        """Its type."""
        ...


@dataclass(frozen=True)
class TracedSetting:
    """A setting whose value is known only during the run, so it is sent with each call."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """A step with its settings and the shapes of its arguments and its reply.

    Attributes:
        number: position in the plan.
        name: the step's module and name.
        step: the step.
        arguments: shapes and types of its arguments, for one client.
        reply: shapes and types of what it returns.
        settings: leaves of the settings; a ``TracedSetting`` for each one that is sent.
        structure: tree structure of the settings.
        has_key: whether the step takes a random key.
        draws: which rows it averages: of each sample the split, its size (None: all rows) and the
            number of batches that the rows are dealt into.
        evaluations: what it evaluates.
        most_iterations: no loop of it is longer; None means no limit. See :func:`is_beyond`.
    """

    number: int
    name: str
    step: Step
    arguments: tuple[Tree, ...]
    reply: Tree
    settings: tuple[object, ...]  # of any type that a step takes
    structure: Hashable  # a tree definition, for which JAX has no usable type
    has_key: bool
    draws: frozenset[Draw] = frozenset()
    evaluations: tuple[Evaluations, ...] = ()
    most_iterations: int | None = None
    _compiling: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _compiled: set[tuple[int, int]] = field(default_factory=set, repr=False)

    @cached_property
    def argument_specs(self) -> list[str]:
        """Types and shapes of the leaves of its arguments."""
        return specs(self.arguments)

    @cached_property
    def traced_settings(self) -> list[TracedSetting]:
        """The settings that are sent with each call, in order."""
        return [leaf for leaf in self.settings if isinstance(leaf, TracedSetting)]

    def work(self, rows: Mapping[str, Bounds]) -> tuple[Bounds, Bounds]:
        """Gradients and Hessian-vector products for a client, from its numbers of rows by split."""
        parts = [one.work(rows[one.split]) for one in self.evaluations]
        gradients, products = zip(*parts, strict=True) if parts else ((), ())
        return _total(gradients), _total(products)

    def run(self, population: Population, inputs: Sequence["Inputs"]) -> "list[Result]":
        """The leaves of each client's reply, and its work. Compiled once per batch size.

        Args:
            population: has the rows of these clients.
            inputs: one per client; several go through one vmap.
        """
        kind = id(population), len(inputs)
        if kind in self._compiled:  # only a hint: a wrong one costs a wait or another compilation
            return self._run(population, inputs)
        with self._compiling:  # otherwise all threads of one process would compile it at once
            out = self._run(population, inputs)
            self._compiled.add(kind)
            return out

    def _run(self, population: Population, inputs: Sequence["Inputs"]) -> "list[Result]":
        if len(inputs) == 1:  # a vmap would turn branches into selects
            # JAX takes over aligned arrays without a copy, but copies them if a program does it
            own = inputs[0]._replace(values=jax.device_put(inputs[0].values))
            return [self._single(population, own)]
        # stacked and split outside the compiled function: inside, compile time would grow with
        # the number of clients
        stacked = jax.tree.map(lambda *one: np.stack(one), *inputs)
        replies, work = jax.tree.map(np.asarray, self._batched(population, stacked))
        rows = range(len(inputs))
        return [(jax.tree.map(lambda a, i=i: a[i], replies), work[i]) for i in rows]

    @cached_property
    def _single(self):
        return jax.jit(self._one)

    @cached_property
    def _batched(self):
        return jax.jit(jax.vmap(self._one, in_axes=(None, 0)))

    def _one(self, population: Population, inputs: "Inputs") -> "Result":
        key = None if inputs.key is None else wire.words_to_keys(inputs.key)
        values = [wire.wrap_keys(value) for value in inputs.values]
        for number in inputs.folds:
            assert key is not None, "only a key is folded"
            key = jax.random.fold_in(key, number)
        sent = iter(inputs.settings)
        leaves = [next(sent) if isinstance(s, TracedSetting) else s for s in self.settings]
        settings = jax.tree.unflatten(self.structure, leaves)
        arguments = jax.tree.unflatten(jax.tree.structure(self.arguments), values)
        loop = traced_loop if self.most_iterations is None else BoundedLoop(self.most_iterations)
        client = LocalClient(population, inputs.id, key, loop)
        reply = self.step(client, *arguments, **settings)
        work = jnp.stack(client.work, axis=-1)
        if isinstance(loop, BoundedLoop):
            work = jnp.where(loop.is_beyond, jnp.uint32(_BEYOND), work)
        return [wire.unwrap_keys(jnp.asarray(leaf)) for leaf in jax.tree.leaves(reply)], work


class Inputs(NamedTuple):
    """One client's inputs of a call.

    Attributes:
        id: the client's number.
        key: the step's key, as raw words.
        folds: numbers to fold into the key, in order, to make it the client's own.
        values: leaves of the arguments.
        settings: values of the traced settings.
    """

    id: np.int32
    key: wire.Keys | None
    folds: tuple[np.uint32, ...]
    values: list[wire.Leaf]
    settings: list[wire.Leaf]


Result = tuple[list[wire.Leaf], np.ndarray | jax.Array]
"""The leaves of a call's reply, and its work: gradients and Hessian-vector products."""

_BEYOND = 2**32 - 1  # in every word of the work, of a call whose loops were cut short


def is_beyond(work: np.ndarray | jax.Array) -> bool:
    """Whether a loop of a call was longer than the call's ``most_iterations`` and was cut short.

    The call's result is then worthless.
    """
    return bool((np.asarray(work) == _BEYOND).all())


class BoundedLoop:
    """A loop of compiled programs that ends after ``most`` iterations, and tells.

    >>> loop = BoundedLoop(3)
    >>> int(loop(5, lambda i, total: total + i, 0)), bool(loop.is_beyond)
    (3, True)

    Args:
        most: the most iterations of a loop; loops within loops have the same limit each.
    """

    def __init__(self, most: int):
        self._most = most
        self.is_beyond: bool | jax.Array = jnp.asarray(False)

    def __call__(self, n: Count, body: Callable[[Count, Tree], Tree], init: Tree, /) -> Tree:
        """The last value."""

        def once(i: Count, carry: tuple) -> tuple:
            value, self.is_beyond = carry
            value = body(i, value)
            return value, self.is_beyond

        is_beyond = self.is_beyond | (jnp.asarray(n) > self._most)
        # a number that is known when tracing stays one: such loops can be differentiated
        is_traced = isinstance(n, Tracer)
        shorter = jnp.minimum(n, self._most) if is_traced else min(int(n), self._most)
        value, self.is_beyond = traced_loop(shorter, once, (init, is_beyond))
        return value


Anchors = Mapping[tuple[int, int], tuple[int, ...]]
"""Of replies that are iterates, where the value is that the client was sent and has moved from.

By number of the call and leaf of its reply: the place of the leaf among the arguments of the call;
if that argument was computed, the place among the arguments of its call follows, and so on.
"""


Computed = tuple[int, int]
"""What a client has computed: the number of the call, and the leaf of its reply."""


@dataclass(frozen=True)
class Flow:
    """Where a round takes what clients compute. A client takes it nowhere else.

    Attributes:
        uploaded: what is sent to the server.
        kept: what becomes a client's memory.
        used: by call and place of an argument, what that argument may be.
    """

    uploaded: frozenset[Computed]
    kept: frozenset[Computed]
    used: Mapping[tuple[int, int], frozenset[Computed]]

    def may_leave(self, value: Computed) -> bool:
        """Whether a value is uploaded, or kept: memories leave for checkpoints."""
        return value in self.uploaded or value in self.kept

    def may_be_used(self, value: Computed, call: int, place: int) -> bool:
        """Whether a value can be this argument: a round uses it there, or has kept it before."""
        return value in self.used.get((call, place), ()) or value in self.kept


class Plan:
    """What both sides have agreed on: the calls of an algorithm, and how replies are protected.

    Args:
        calls: in the order in which tracing a round first meets them.
        flow: where what they compute goes.
        anchors: where replies have moved away from.
        most_iterations: no loop of a call is longer; None means no limit.
        secure: the settings of secure aggregation, if replies are masked.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        flow: Flow,
        anchors: Anchors = MappingProxyType({}),
        most_iterations: int | None = None,
        secure: SecureAggregation | None = None,
    ):
        self.calls, self.flow, self.anchors = tuple(calls), flow, anchors
        self.most_iterations, self.secure = most_iterations, secure
        self._bounded: dict[int, Plan] = {}

    def bounded(self, most_iterations: int) -> "Plan":
        """The same plan whose loops are bounded; always the same object, so it compiles once."""
        if most_iterations not in self._bounded:
            calls = [
                replace(
                    call, most_iterations=most_iterations, _compiling=threading.Lock(),
                    _compiled=set(),
                )
                for call in self.calls
            ]  # fmt: skip
            plan = Plan(calls, self.flow, self.anchors, most_iterations, self.secure)
            self._bounded.setdefault(most_iterations, plan)
        return self._bounded[most_iterations]

    def find(self, step: Step, arguments: list, settings: dict, has_key: bool) -> tuple[Call, list]:
        """The call of a step with these arguments, and the values of its traced settings.

        Args:
            step: the step.
            arguments: leaves with ``shape`` and ``dtype``, for one client.
            settings: its settings by keyword.
            has_key: whether it is given a key.
        """
        leaves, structure = jax.tree.flatten(settings)
        name = step_name(step)
        for call in self.calls:
            if (call.name, call.has_key, call.structure) != (name, has_key, structure):
                continue
            if call.argument_specs != [spec(leaf) for leaf in arguments]:
                continue
            if all(_fits(want, leaf) for want, leaf in zip(call.settings, leaves, strict=True)):
                sent = [
                    np.asarray(leaf, want.dtype)
                    for want, leaf in zip(call.settings, leaves, strict=True)
                    if isinstance(want, TracedSetting)
                ]
                return call, sent
        raise ValueError(
            f"step {name} with arguments {[spec(leaf) for leaf in arguments]} and these settings "
            "was not seen when the round was traced. Which steps a round runs, and their shapes, "
            "must not depend on runtime values."
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all calls; the handshake compares it."""
        content = [
            [call.name, call.argument_specs, specs(call.reply), call.has_key, _described(call)]
            for call in self.calls
        ]
        return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:16]


def step_name(step: Step) -> str:
    """The name of a step in messages: its module and qualified name."""
    return f"{step.__module__}.{step.__qualname__}"


def spec(leaf: HasShape) -> str:
    """Type and shape of one array.

    >>> spec(np.zeros((2, 3), np.float32))
    'float32[2, 3]'
    """
    return _spec(leaf.dtype, tuple(leaf.shape))


@lru_cache(10_000)
def _spec(dtype: Hashable, shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}"


@lru_cache(10_000)
def spec_nbytes(spec: str) -> int:
    """Upper bound on the bytes of an array, given its type and shape."""
    name, _, axes = spec.partition("[")
    size = 16 if name.startswith("key<") else jnp.dtype(name).itemsize  # the largest key type
    return size * math.prod(json.loads(f"[{axes}"))


def specs(tree: Tree) -> list[str]:
    """Types and shapes of all arrays in a tree."""
    return [spec(leaf) for leaf in jax.tree.leaves(tree)]


def struct_of(leaf: ArrayLike) -> jax.ShapeDtypeStruct:
    """Type and shape of a number or an array, as JAX's struct."""
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype)


def is_same(a: Call, b: Call) -> bool:
    """Whether two calls are equal but for their position."""
    if (a.name, a.has_key, a.structure) != (b.name, b.has_key, b.structure):
        return False
    if a.argument_specs != b.argument_specs:
        return False
    return all(_fits(u, w) for u, w in zip(a.settings, b.settings, strict=True))


def _fits(want: object, leaf: object) -> bool:  # settings of any type
    """Whether a setting equals the traced one, or is a number to send in its place."""
    if isinstance(want, TracedSetting):
        if isinstance(leaf, TracedSetting):
            return want == leaf
        is_number = isinstance(leaf, int | float | np.ndarray | np.generic | jax.Array)
        return is_number and np.shape(leaf) == want.shape
    if want is leaf:
        return True
    if isinstance(want, np.ndarray | jax.Array) and isinstance(leaf, np.ndarray | jax.Array):
        return want.dtype == leaf.dtype and np.array_equal(want, leaf)
    return type(want) is type(leaf) and bool(want == leaf)


def _total(bounds: Sequence[Bounds]) -> Bounds:
    return sum(least for least, _ in bounds), sum(most for _, most in bounds)


def _described(call: Call) -> object:  # JSON
    return describe(jax.tree.unflatten(call.structure, call.settings))
