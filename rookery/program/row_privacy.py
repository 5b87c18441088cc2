"""Differential privacy of rows: clients clip the part of every row and add noise to their means.

``RowPrivate(algorithm, clip=..., noise=...)`` is the same program with other samples. What an
oracle averages over the rows of a sample, such as the gradients of single rows, becomes::

    mean of the parts g_r   ->   mean of clip(g_r) + N(0, σ²),    σ = noise x 2 clip / rows drawn

This is DP-SGD (M. Abadi et al., CCS 2016, arXiv:1607.00133) inside the local steps of any
algorithm. Every average is a release, and all that a client uploads or remembers is computed from
releases alone. Rows and noise are drawn from the server's key: it must be trusted to forget it, or
sites mix in a key of their own (:class:`~rookery.remote.SitePolicy`).

**What is protected.** A single row of a client: the guarantee compares two runs that differ in the
content of one row, and holds for every client. The number of rows of a client is public.

**How rows are drawn.** A batch has different rows, each set of them equally likely. Every draw is
independent of all others, even where an algorithm would use the same key twice. Several averages
over one sample are composed before the draw amplifies their privacy.

Refused are rows that are used otherwise: losses over pairs and batches (one row is in many parts),
dealt batches, prepared rows, one sample in the turns of a loop, and asynchronous programs, whose
number of releases is not known beforehand. docs/privacy.md tells what the guarantee does not cover.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY
from functools import partial
from typing import NamedTuple, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery import check, tree
from rookery.program.clipping import clipped, gaussian
from rookery.program.federation import NO_SETTINGS, AbstractFederation, Client, Placed, Step
from rookery.program.polling import PollResult
from rookery.program.private_algorithm import AbstractPrivate
from rookery.program.wrapped import AbstractWrapped
from rookery.samples import Deal, rows_per_draw
from rookery.types import AnyProblem, BatchSize, Count, Key, Sample, Tree

MOST_DRAWS = 4
"""How many kinds of draws, by split and batch size, a program may have."""

MOST_AVERAGES = 16
"""How many averages may be taken over one sample."""

_MAPS, _DRAWS, _NOISE = 0x5EED0DD6, 0x5EED0DD7, 0x5EED0DD8  # larger than what algorithms fold in

Draws = Int[Array, "kinds averages"]
"""How many draws of each kind had how many averages."""


class DrawKind(NamedTuple):
    """How rows were drawn: ``size`` different ones of a split, or all of them if it is None."""

    split: str
    size: int | None


def _none_if(value: float, given: float) -> float | None:
    """Field converter: what changes nothing is None, before numbers become arrays."""
    return None if isinstance(given, float | int) and given == value else given


class RowPrivate(AbstractPrivate):
    """An algorithm whose clients clip the part of every row and add noise to every average.

    It runs on every engine: the same key gives the same noise. With ``clip=inf`` and ``noise=0`` it
    is the algorithm itself, bit for bit.

    >>> import rookery as rk
    >>> private = RowPrivate(rk.FedAvg(lr=0.1, batch_size=32), clip=1.0, noise=1.1)
    >>> private.name, private.noise
    ('RowPrivateFedAvg', 1.1)

    Args:
        algorithm: the server program.
        clip: the longest part of a row in an average, in the Euclidean norm over all its arrays.
        noise: standard deviation of the noise over the sensitivity of the average, 2 clip / rows.
        delta: of (epsilon, delta)-privacy; well below one over the number of a client's rows. The
            history gets a column ``epsilon``, the largest of all clients, which needs the package
            dp-accounting. None accounts nothing.
        epsilon: the run stops before the round that would exceed it; None sets no limit.
    """

    _: KW_ONLY
    clip: float | None = eqx.field(converter=partial(_none_if, float("inf")))
    noise: float | None = eqx.field(converter=partial(_none_if, 0))

    def __check_init__(self):
        for name in ("clip", "noise"):
            if (number := getattr(self, name)) is not None:
                check.positive(name, number)

    def check(self, problem: AnyProblem, n_clients: int) -> None:  # as the algorithm narrows it
        """Raise unless the algorithm fits."""
        self.check_fit(problem, n_clients)

    def init(self, problem: AnyProblem, *variables: Tree, **named: Tree) -> Tree:
        """The state of the algorithm."""
        return self.algorithm.init(problem, *variables, **named)

    def round(self, fed: AbstractFederation, problem: AnyProblem, state: Tree, key: Key) -> Tree:
        """A round of the algorithm with private samples."""
        if self.clip is None:
            return self.algorithm.round(fed, problem, state, key)
        return self.algorithm.round(RowPrivateFederation(fed, self, key), problem, state, key)

    def solution(self, state: Tree) -> tuple[Tree, ...]:
        """The problem's variables."""
        return self.algorithm.solution(state)

    def own_leaves(self, state: Tree) -> tuple[Tree, ...] | None:
        """As the algorithm has them."""
        return self.algorithm.own_leaves(state)


class RowPrivateFederation(AbstractWrapped):
    """The words of another federation, whose client steps see private samples.

    Args:
        fed: the other federation.
        rule: how rows are clipped and noised.
        key: of the round.
        count: runs a step on a cohort and returns one row of its reply per slot. If it is given,
            the draws of every client are counted.

    Attributes:
        kinds: of the draws that were met.
        draws: [clients, kinds, averages] the draws of all clients so far, if they are counted.
    """

    def __init__(
        self,
        fed: AbstractFederation,
        rule: RowPrivate,
        key: Key,
        count: Callable[..., Tree] | None = None,
    ):
        super().__init__(fed)
        self._rule, self._key, self._count = rule, key, count
        self._maps = jnp.zeros((), jnp.uint32)
        self.kinds: list[DrawKind] = []
        n = 0 if count is None else fed.n_clients
        self.draws = jnp.zeros((n, MOST_DRAWS, MOST_AVERAGES + 1), jnp.int32)

    def map(self, step: Step, *values: Placed, key: Key | None = None, **settings) -> Placed:
        """The step with private samples.

        Its key is one of its own: an algorithm may use one key twice to see the same rows again,
        and their draws would then not be independent.
        """
        own = jax.random.fold_in(jax.random.fold_in(self._key, _MAPS), self._maps)
        self._maps = self._maps + 1
        more = {"private_step": step, "rule": self._rule}
        if self._count is not None:
            kinds = self.kinds
            drawn = self._count(draws_of_step, *values, key=own, kinds=kinds, **more, **settings)
            cohort = values[0].cohort
            drawn = jnp.where(cohort.active[:, None, None], drawn, 0)
            self.draws = self.draws.at[cohort.ids].add(drawn)
        return self.fed.map(private_step_on_rows, *values, key=own, **more, **settings)

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """Refused: how often a client answers is not known beforehand."""
        _refuse("fed.poll", "how many releases a client makes is not known before the run")

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """Refused: the set of clients comes from what they have done before."""
        _refuse("fed.ask", "how many releases a client makes is not known before the run")

    def notes(self) -> Tree:
        """The maps and the draws so far."""
        return self._maps, self.draws

    def take_notes(self, notes: Tree) -> None:
        """Continue from these."""
        self._maps, self.draws = notes


def private_step_on_rows(
    client: Client, *values: Tree, private_step: Step, rule: RowPrivate, **settings: object
) -> Tree:
    """A client step that sees its rows through private samples."""
    return private_step(PrivateClient(client, rule, []), *values, **settings)


def draws_of_step(
    client: Client,
    *values: Tree,
    private_step: Step,
    rule: RowPrivate,
    kinds: list[DrawKind],
    **settings: object,
) -> Draws:
    """How many draws of each kind the same step makes; kinds that are new are added."""
    private = PrivateClient(client, rule, kinds)
    private_step(private, *values, **settings)
    return private.finish()


class PrivateClient:
    """A client whose samples are private; see :class:`~rookery.program.step.Client`.

    Args:
        client: whose rows they are.
        rule: how they are clipped and noised.
        kinds: of draws; a kind that is new is added.
    """

    def __init__(self, client: Client, rule: RowPrivate, kinds: list[DrawKind]):
        self.id = client.id
        self._client, self._rule, self._kinds = client, rule, kinds
        self._numbers = jnp.zeros(2, jnp.uint32)  # of draws and of averages so far
        self._draws = jnp.zeros((MOST_DRAWS, MOST_AVERAGES + 1), jnp.int32)
        self._open: list[PrivateSample] = []  # drawn in the present turn of the innermost loop

    @property
    def key(self) -> Key:
        """The key of this step on this client."""
        return self._client.key

    def draw(self, split: str, size: BatchSize, key: Key, prepared: Tree = None) -> Sample:
        """A private sample of different rows, with a draw of its own."""
        if prepared is not None:
            _refuse("prepared rows", "what they were prepared with has seen all rows")
        number = rows_per_draw(size, split)
        if number is not None and number >= self._client.most_rows(split):
            number = None
        # of the step's own key: an algorithm may draw by a key that it has used before
        own = jax.random.fold_in(jax.random.fold_in(self.key, _DRAWS), self._numbers[0])
        self._numbers = self._numbers.at[0].add(1)
        rows = self._client.draw_distinct(split, number, own)
        sample = PrivateSample(self, rows, DrawKind(split, number))
        self._open.append(sample)
        return sample

    def draw_distinct(self, split: str, size: BatchSize, key: Key) -> Sample:
        """The same: rows of a private sample always differ."""
        return self.draw(split, size, key)

    def deal(self, split: str, size: BatchSize, key: Key, prepared: Tree = None) -> Deal:
        """Refused."""
        _refuse("dealt batches", "they are not drawn independently")

    def prepare(self, split: str, fn: Callable[[Tree], Tree]) -> Tree:
        """Refused."""
        _refuse("prepared rows", "they would leave the sample")

    def most_rows(self, split: str) -> int:
        """A bound on the rows of a split."""
        return self._client.most_rows(split)

    def repeat(
        self,
        n: Count,
        body: Callable[[jax.Array, Tree], Tree],
        init: Tree,
        *,
        most: int | None = None,
    ) -> Tree:
        """The client's loop, which carries the numbers of draws along."""

        def once(i: jax.Array, carry: tuple) -> tuple:
            value, self._numbers, self._draws = carry
            with self._turn():
                value = body(i, value)
            return value, self._numbers, self._draws

        first = init, self._numbers, self._draws
        value, self._numbers, self._draws = self._client.repeat(n, once, first, most=most)
        return value

    @contextmanager
    def _turn(self) -> Iterator[None]:
        before, self._open = self._open, []
        yield
        self._close()
        self._open = before

    def _close(self) -> None:
        """Count the samples that will not be used again."""
        for sample in self._open:
            if sample.kind not in self._kinds:
                self._kinds.append(sample.kind)
            if len(self._kinds) > MOST_DRAWS:
                raise ValueError(
                    f"RowPrivate accounts for {MOST_DRAWS} kinds of draws, by split and batch "
                    f"size; the program has {self._kinds}. Use fewer batch sizes."
                )
            self._draws = self._draws.at[self._kinds.index(sample.kind), sample.averages].add(1)

    def finish(self) -> Draws:
        """All draws of the step; called when it is over."""
        self._close()
        self._open = []
        return self._draws

    def release(self, sample: "PrivateSample", average: Callable[[Callable], Tree]) -> Tree:
        """What a private sample gives instead of an average.

        Args:
            sample: of whose rows the average is.
            average: takes a function of one block of rows, and sums it over the blocks.
        """
        if not any(sample is one for one in self._open):
            _refuse(
                "one sample in the turns of a loop",
                "how many releases are made of it depends on the loop",
            )
        sample.averages += 1
        if sample.averages > MOST_AVERAGES:
            _refuse(f"a sample with over {MOST_AVERAGES} averages", "they are not accounted for")
        bound = jnp.asarray(self._rule.clip, float)

        def block(fn: Callable[..., Tree], rows: Tree, weights: Array, *keys: Key) -> Tree:
            def part(row: Tree, *key: Key) -> Tree:
                one = jax.tree.map(lambda leaf: leaf[None], (row, *key))
                return clipped(fn(one[0], jnp.ones(1), *one[1:]), bound, False)[0]

            parts = jax.vmap(part)(rows, *keys)
            return jax.tree.map(lambda p: jnp.tensordot(weights.astype(p.dtype), p, 1), parts)

        mean = average(block)
        if self._rule.noise is None:
            return mean
        key = jax.random.fold_in(jax.random.fold_in(self.key, _NOISE), self._numbers[1])
        self._numbers = self._numbers.at[1].add(1)
        # all rows that count have the same weight, so its square sums to one over their number
        one_row = sample.plain.average(lambda _, weights: jnp.sum(jnp.square(weights)))
        std = jnp.asarray(self._rule.noise, float) * 2 * bound * one_row
        return tree.add(mean, gaussian(key, mean, std))


class PrivateSample:
    """A sample whose averages are clipped by row and noised; see :class:`~rookery.types.Sample`.

    Attributes:
        plain: the sample without noise.
        kind: how it was drawn.
        averages: how many releases have been made of it.
    """

    def __init__(self, client: PrivateClient, rows: Sample, kind: DrawKind):
        self.plain, self.kind, self.averages = rows, kind, 0
        self._client = client

    def average(self, fn: Callable[[Tree, Float[Array, " rows"]], Tree], /) -> Tree:
        """A release of the mean of ``fn``."""
        rows = self.plain
        return self._client.release(
            self, lambda block: rows.average(lambda *some: block(fn, *some))
        )

    def average_with_keys(self, fn: Callable[[Tree, Float[Array, " rows"], Key], Tree], /) -> Tree:
        """The same with a key per row."""
        rows = self.plain
        return self._client.release(
            self, lambda block: rows.average_with_keys(lambda *some: block(fn, *some))
        )

    def pairs(self) -> Sample:
        """Refused."""
        _refuse("a loss over pairs", "one row is in many of them")

    def batch(self) -> Sample:
        """Refused."""
        _refuse("a loss over a batch", "the part of a single row is not known")

    def row_shape(self) -> Tree:
        """As for a plain sample: a shape is no release."""
        return self.plain.row_shape()

    def charge(self, *, gradients: int = 0, hessian_vectors: int = 0) -> None:
        """As for a plain sample."""
        self.plain.charge(gradients=gradients, hessian_vectors=hessian_vectors)


def _refuse(what: str, why: str) -> NoReturn:
    raise ValueError(f"RowPrivate does not allow {what}: {why}.")
