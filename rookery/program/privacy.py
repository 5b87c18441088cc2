"""Differential privacy of clients: every upload is clipped, and what the server learns is noised.

``Private(algorithm, clip=..., noise=...)`` is the same program with other means::

    mean of the uploads u_i  ->  c + Σ s_i clip(u_i - c) + N(0, σ²),    σ = noise x sensitivity

s_i are the weights of the slots. c is what the clients were sent if u_i is an iterate, and zero
otherwise. Every exchange is a release: the noise is added to each, with a key of its own.

**Who is protected.** A whole client: all that it ever uploads. The guarantee compares two runs that
differ in one client's data, and says how little an observer of all server values can tell them
apart. How the clients are drawn decides what "differ" means, and how large the sensitivity is:

    draw                        neighbours                      sensitivity of a mean
    Everyone, Fixed, Poisson    a client uploads c instead      clip x largest s_i
    Uniform(n), n < clients     a client has other data         2 clip x largest s_i

A program that draws by ``Uniform`` anywhere has the second kind of neighbours everywhere. A
``Poisson`` mean divides by the expected weight, not by the weight drawn, which would depend on who
was there. Weights of clients count as public.

**Who is trusted.** The server, which clips and adds the noise. With ``noise=Distributed(z)`` the
clients do it: each adds a part, and the mean has the same noise as before. With secure aggregation
the clients clip, and the server sees no single upload: it sees the mean before the noise, or, with
``Distributed``, the noisy mean alone.

Refused are words that show single uploads (``fed.stack``, ``fed.sum``, ``fed.poll``, ``fed.ask``),
means by weights that clients send, robust rules, and draws that could pick a client twice or by its
data. docs/privacy.md tells what the guarantee does not cover.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery import tree
from rookery.program.aggregate import Mean
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.clipping import SCALES as SCALES
from rookery.program.clipping import AbstractNoise as AbstractNoise
from rookery.program.clipping import Central as Central
from rookery.program.clipping import Clip as Clip
from rookery.program.clipping import Distributed as Distributed
from rookery.program.clipping import QuantileClip as QuantileClip
from rookery.program.clipping import as_clip, as_noise, clipped, gaussian
from rookery.program.federation import (
    NO_SETTINGS,
    AbstractFederation,
    Around,
    Client,
    Placed,
    Step,
    only_sums,
)
from rookery.program.participation import (
    AbstractParticipation,
    Cohort,
    Everyone,
    Fixed,
    Poisson,
    Uniform,
)
from rookery.program.polling import PollResult
from rookery.program.private_algorithm import AbstractPrivate
from rookery.program.wrapped import AbstractWrapped
from rookery.types import AnyProblem, Key, Tree

__all__ = ["AbstractNoise", "Central", "Clip", "Distributed", "Private", "QuantileClip"]

Decode = Callable[[Tree], Tree] | None
"""What turns the message of a client into its reply, if replies are encoded."""

MOST_RELEASES = 64
"""To how many exchanges a cohort may answer."""

_NOISE = 0x5EED0DD5  # folded into a round's key: larger than what algorithms fold in

_NEEDS_SIZE = (
    "Distributed noise needs a cohort of known size, and a Poisson cohort has none. Use "
    "Uniform(n), Everyone() or noise at the server."
)


# ---- how cohorts are drawn


@dataclass(frozen=True)
class Sampling:
    """How a cohort was drawn, as an accountant has to know it.

    Attributes:
        rate: the probability of every client, if they are drawn independently.
        size: how many are drawn without replacement. If both are None, nothing is random.
    """

    rate: float | None = None
    size: int | None = None


def sampling_of(rule: AbstractParticipation, n_clients: int) -> Sampling:
    """How a rule draws, or an error if no accountant can tell.

    >>> sampling_of(Uniform(3), 10), sampling_of(Uniform(3), 3)
    (Sampling(rate=None, size=3), Sampling(rate=None, size=None))
    """
    if isinstance(rule, Poisson):
        return Sampling() if rule.rate == 1 else Sampling(rate=rule.rate)
    if isinstance(rule, Uniform):
        return Sampling() if rule.n == n_clients else Sampling(size=rule.n)
    if isinstance(rule, Everyone | Fixed):
        return Sampling()
    raise ValueError(
        f"a private run cannot draw clients by {type(rule).__name__}: a client may be drawn twice, "
        "or more often than others, and its privacy is then not that of the rest. Use "
        "rk.participation.Poisson(rate), Uniform(n) or Everyone()."
    )


def samplings(algorithm: AbstractAlgorithm, n_clients: int) -> list[Sampling]:
    """How the rules among the settings of an algorithm draw."""
    leaves = jax.tree.leaves(algorithm, is_leaf=_is_rule)
    return [sampling_of(rule, n_clients) for rule in leaves if _is_rule(rule)]


def _is_rule(node: object) -> bool:
    return isinstance(node, AbstractParticipation)


class _Draw(NamedTuple):
    """A cohort of a private round: how it was drawn, what its slots count, and at most."""

    sampling: Sampling
    weights: Float[Array, " slots"]
    heaviest: Float[Array, ""]


# ---- the program


class _Release(NamedTuple):
    """One private mean.

    Attributes:
        bound: the length that an upload is clipped to.
        reach: how far one client can move a mean of uploads of length one.
        draw: how the cohort was drawn.
        key: of the noise.
    """

    bound: jax.Array
    reach: jax.Array
    draw: _Draw
    key: Key


class PrivateState(NamedTuple):
    """The state of the algorithm, and the bounds if they move."""

    own: Tree
    bounds: Tree


class Private(AbstractPrivate):
    """An algorithm whose every exchange releases a clipped and noised mean.

    It runs on every engine: the same key gives the same noise. With ``clip=inf`` and ``noise=0`` it
    is the algorithm itself, bit for bit. All clients of a cohort must reply.

    >>> import rookery as rk
    >>> private = Private(rk.FedAvg(lr=0.1, clients=rk.participation.Poisson(0.2)), clip=1, noise=1)
    >>> private.name, private.noise
    ('PrivateFedAvg', Central(multiplier=1))

    Args:
        algorithm: the server program.
        clip: the longest upload: a number, a :class:`Clip` with a bound for each kind of upload, a
            :class:`QuantileClip`, or infinity.
        noise: standard deviation of the noise over the sensitivity of the mean: a number for noise
            at the server, or :class:`Distributed`.
        delta: of (epsilon, delta)-privacy; well below one over the number of clients. The history
            gets a column ``epsilon``, which needs the package dp-accounting. None accounts nothing.
        epsilon: the run stops before the round that would exceed it; None sets no limit.
    """

    _: KW_ONLY
    clip: Clip | QuantileClip | None = eqx.field(converter=as_clip)
    noise: AbstractNoise | None = eqx.field(converter=as_noise)

    @property
    def multiplier(self) -> float | None:
        """The noise multiplier of one release and of all that comes with it, if there is noise."""
        if self.clip is None or self.noise is None:
            return None
        return self.clip.total_noise(self.noise.multiplier)

    def check(self, problem: AnyProblem, n_clients: int) -> None:
        """Raise unless the algorithm fits, and draws clients in a way that can be accounted for."""
        self.check_fit(problem, n_clients)
        if self.clip is None:
            return
        drawn = samplings(self.algorithm, n_clients)
        if self.replaces(n_clients) and any(s.rate is not None for s in drawn):
            raise ValueError(
                "a private run draws all its cohorts by Poisson, or all by Uniform: the two "
                "protect against different neighbours."
            )
        if isinstance(self.noise, Distributed) and any(s.rate is not None for s in drawn):
            raise ValueError(_NEEDS_SIZE)

    def replaces(self, n_clients: int) -> bool:
        """Whether neighbours differ by a client with other data, not by one that is left out."""
        return any(s.size is not None for s in samplings(self.algorithm, n_clients))

    def init(self, problem: AnyProblem, *variables: Tree, **named: Tree) -> PrivateState:
        """The state of the algorithm, and the first bounds."""
        bounds = () if self.clip is None else self.clip.first()
        return PrivateState(self.algorithm.init(problem, *variables, **named), bounds)

    def round(
        self, fed: AbstractFederation, problem: AnyProblem, state: PrivateState, key: Key
    ) -> PrivateState:
        """A round of the algorithm with private means."""
        return self.round_and_releases(fed, problem, state, key)[0]

    def round_and_releases(
        self, fed: AbstractFederation, problem: AnyProblem, state: PrivateState, key: Key
    ) -> tuple[PrivateState, "Releases"]:
        """The state after a round, and what the round has released."""
        private = PrivateFederation(fed, self, state.bounds, jax.random.fold_in(key, _NOISE))
        own = self.algorithm.round(private, problem, state.own, key)
        return PrivateState(own, private.bounds), private.releases()

    def solution(self, state: PrivateState) -> tuple[Tree, ...]:
        """The problem's variables."""
        return self.algorithm.solution(state.own)

    def own_leaves(self, state: PrivateState) -> tuple[Tree, ...] | None:
        """As the algorithm has them: they never leave their clients."""
        return self.algorithm.own_leaves(state.own)


class Releases(NamedTuple):
    """What some rounds have released, by how clients were drawn.

    Attributes:
        samplings: the ways of drawing.
        cohorts: [samplings, MOST_RELEASES + 1], how many cohorts answered to how many exchanges.
    """

    samplings: tuple[Sampling, ...]
    cohorts: Int[Array, "samplings most"]


class PrivateFederation(AbstractWrapped):
    """The words of another federation, with private means.

    Attributes:
        bounds: of uploads, if they move.
    """

    def __init__(self, fed: AbstractFederation, rule: Private, bounds: Tree, key: Key):
        super().__init__(fed)
        if rule.clip is not None and type(fed.aggregate) is not Mean:
            raise ValueError(
                f"a private run needs the plain mean, got aggregate={type(fed.aggregate).__name__}"
                "(): how far one client can move another rule is not bounded by the clip over the "
                "number of clients. Leave aggregate out."
            )
        self.bounds = bounds
        self._rule, self._key = rule, key
        self._replaces = rule.replaces(fed.n_clients)
        self._draws: dict[int, _Draw] = {}  # cohort -> how it was drawn
        self._samplings: list[Sampling] = []
        self._uses: dict[int, jax.Array] = {}  # cohort -> its exchanges so far
        self._released = jnp.zeros((), jnp.int32)
        self._cohorts = jnp.zeros((len(SCALES), MOST_RELEASES + 1), jnp.int32)

    def sample(self, rule: AbstractParticipation, key: Key, probabilities=None) -> Cohort:
        """A fresh cohort, whose draw is noted."""
        cohort = self.fed.sample(rule, key, probabilities)
        if self._rule.clip is None:
            return cohort
        if probabilities is not None:
            raise ValueError(
                "a private run cannot draw clients by probabilities that were computed from their "
                "data: who is drawn would tell about it."
            )
        draw = self._draw(sampling_of(rule, self.n_clients), cohort)
        if draw.sampling not in self._samplings:
            self._samplings.append(draw.sampling)
        self._draws[cohort.token] = draw
        self._uses[cohort.token] = jnp.zeros((), jnp.int32)
        return cohort

    def weight_of(self, cohort: Cohort) -> Float[Array, ""]:
        """The expected sum of the cohort's weights: that of those drawn would tell who they are."""
        draw = self._draws.get(cohort.token)
        if draw is None or draw.sampling == Sampling():
            return super().weight_of(cohort)
        rate, size = draw.sampling.rate, draw.sampling.size
        return jnp.asarray(size / self.n_clients if rate is None and size else rate, float)

    def _draw(self, sampling: Sampling, cohort: Cohort) -> _Draw:
        if (sampling.size is not None) != self._replaces and sampling != Sampling():
            raise ValueError(
                f"the algorithm draws clients in a way that its settings do not show ({sampling}), "
                "so the noise would not fit. Private runs need the rules of all cohorts beforehand."
            )
        if sampling.rate is not None:
            weights = jnp.where(cohort.active, self.weights[cohort.ids], 0.0) / sampling.rate
            return _Draw(sampling, weights, jnp.max(self.weights) / sampling.rate)
        weights = self.slot_weights(cohort)
        if sampling.size is None:
            return _Draw(sampling, weights, jnp.max(weights))
        lightest = jnp.sort(self.weights)
        most = lightest[-1]  # its share is largest among the lightest of the others
        return _Draw(sampling, weights, most / (most + jnp.sum(lightest[: sampling.size - 1])))

    def mean(self, placed: Placed, *, decode=None, apart=False, around: Around = None) -> Tree:
        """The private mean: one release."""
        clip, noise = self._rule.clip, self._rule.noise
        if clip is None:
            return self.fed.mean(placed, decode=decode, apart=apart, around=around)
        draw = self._draws.get(placed.cohort.token)
        if draw is None:
            raise ValueError(
                "a private mean needs a cohort as fed.sample has drawn it; the algorithm has left "
                "out some of its clients, and how few remain is not bounded."
            )
        key = jax.random.fold_in(self._key, self._released)
        self._released = self._released + 1
        self._uses[placed.cohort.token] = self._uses[placed.cohort.token] + 1
        scale = f"{self.kind}_iterate" if around is not None else self.kind
        bound = jnp.asarray(clip.bound(self.bounds, scale), float)
        reach = (2 if self._replaces else 1) * draw.heaviest  # of a mean of uploads of length one
        release = _Release(bound, reach, draw, key)
        if isinstance(noise, Distributed):
            if decode is not None:
                raise ValueError(
                    "Distributed noise cannot be used with compressed uploads: the decoded upload "
                    "would not have the noise that the client added. Use noise at the server."
                )
            mean, within = self._mean_of_noised_uploads(placed, around, release)
        else:
            mean, within = self._noised_mean(placed, decode, around, release)
        self.bounds = clip.renewed(self.bounds, scale, within)
        return mean

    def _noised_mean(
        self, placed: Placed, decode: Decode, around: Around, release: _Release
    ) -> tuple[Tree, jax.Array]:
        """The mean, clipped and noised by the server, and the fraction of uploads within."""
        clip, noise, (bound, reach, draw, key) = self._rule.clip, self._rule.noise, release
        assert clip is not None
        if self.hides_replies:
            mean, within = self._clipped_by_clients(placed, decode, around, release)
        else:
            rows = self.fed.stack(placed)
            if decode is not None:
                rows = jax.vmap(decode)(rows)
            zeros = jax.tree.map(lambda r: jnp.zeros(r.shape[1:], r.dtype), rows)
            centre = self._centre(around, zeros)

            def one(row):
                return clipped(tree.sub(row, centre), bound, clip.by_block)

            ways, is_within = jax.vmap(one)(rows)
            mean = tree.add(centre, self.aggregate(ways, draw.weights))
            within = jnp.sum(draw.weights * (is_within - 0.5)) + 0.5
        if noise is not None:
            std = noise.multiplier * reach * bound * _root(mean, clip.by_block)
            upload_key, bit_key = jax.random.split(key)
            mean = tree.add(mean, gaussian(upload_key, mean, std))
            if clip.bit_noise is not None:
                within = within + gaussian(bit_key, within, clip.bit_noise * reach / 2)
        return mean, within

    def _clipped_by_clients(
        self, placed: Placed, decode: Decode, around: Around, release: _Release
    ) -> tuple[Tree, jax.Array]:
        """The mean of uploads that the server cannot see, and the fraction of them within."""
        assert self._rule.clip is not None
        if decode is not None:
            raise only_sums("a compressed upload", "the server decodes each by itself")
        bound = self.broadcast(placed.cohort, release.bound)
        says_within = self._rule.clip.bit_noise is not None
        step = clipped_and_within if says_within else clipped_upload
        ways = self._map_around(step, placed, bound, around)
        way, *within = self.fed.sum(ways, weights=release.draw.weights)
        mean = tree.add(self._centre(around, tree.zeros_like(way)), way)
        return mean, within[0] + 0.5 if within else jnp.zeros(())

    def _map_around(
        self, step: Step, placed: Placed, numbers: Placed, around: Around, key: Key | None = None
    ) -> Placed:
        """Run a step on uploads, with what they are clipped around."""
        assert self._rule.clip is not None
        shape = jax.tree.map(lambda a: isinstance(a, Placed), around, is_leaf=_is_around)
        sent = jax.tree.leaves(around, is_leaf=_is_placed)
        how = {"by_block": self._rule.clip.by_block, "around": shape}
        return self.fed.map(step, placed, numbers, *sent, key=key, **how)

    def _mean_of_noised_uploads(
        self, placed: Placed, around: Around, release: _Release
    ) -> tuple[Tree, jax.Array]:
        """The mean of uploads that clients have clipped and noised, and the fraction within."""
        clip, noise, cohort = self._rule.clip, self._rule.noise, placed.cohort
        bound, reach, draw, key = release
        assert clip is not None and noise is not None
        if draw.sampling.rate is not None:
            raise ValueError(_NEEDS_SIZE)
        n = math.sqrt(len(cohort))
        std = noise.multiplier * reach * bound * n
        bit_std = None if clip.bit_noise is None else clip.bit_noise * reach / 2 * n
        numbers = self.broadcast(cohort, (bound, std, bit_std))
        uploads = self._map_around(noised_upload, placed, numbers, around, key)
        mean, *within = self.fed.sum(uploads, weights=draw.weights)
        return mean, within[0] + 0.5 if within else jnp.zeros(())

    def _centre(self, around: Around, like: Tree) -> Tree:
        """What an upload is clipped around."""
        if around is None:
            return like
        if isinstance(around, tuple):
            return tuple(self._centre(a, part) for a, part in zip(around, like, strict=True))
        if around.is_stacked:
            raise ValueError(
                "a private mean is clipped around a value that all clients were sent; this one "
                "differs between clients, and so would tell who they are."
            )
        return self.fed.as_sent(around)

    def weighted_mean(self, placed: Placed, weights: Placed) -> Tree:
        """Refused: the weight that a client sends has no bound."""
        if self._rule.clip is None:
            return self.fed.weighted_mean(placed, weights)
        raise _refusal("fed.weighted_mean", "the weight that a client sends is not bounded")

    def sum(self, placed: Placed, *, weights: Float[Array, " slots"] | None = None) -> Tree:
        """Refused."""
        if self._rule.clip is None:
            return self.fed.sum(placed, weights=weights)
        raise _refusal("fed.sum", "its uploads are counts, or those of few clients")

    def stack(self, placed: Placed, *, is_aggregated: bool = False) -> Tree:
        """Refused: it shows the upload of every client."""
        if self._rule.clip is None:
            return self.fed.stack(placed, is_aggregated=is_aggregated)
        raise _refusal(
            "fed.stack",
            "the server would see the upload of every single client. Measured step sizes and "
            "Lipschitz constants do that too; give numbers instead",
        )

    def poll(self, jobs, step, *values, rules, key, settings=NO_SETTINGS) -> PollResult:
        """Refused: asynchronous results come one by one."""
        if self._rule.clip is None:
            return super().poll(jobs, step, *values, rules=rules, key=key, settings=settings)
        raise _refusal("fed.poll", "results come from single clients, at times of their own")

    def ask(self, who, step, *values, key, settings=NO_SETTINGS) -> Tree:
        """Refused: the set of clients comes from what they have done before."""
        if self._rule.clip is None:
            return super().ask(who, step, *values, key=key, settings=settings)
        raise _refusal("fed.ask", "the set of clients is not drawn, and may be small")

    # ---- loops

    def turn(self, body: Callable[[jax.Array, Tree], Tree], i: jax.Array, value: Tree) -> Tree:
        """One turn of a loop; cohorts drawn in it have no exchange after it."""
        before = set(self._uses)
        value = body(i, value)
        self._close(token for token in tuple(self._uses) if token not in before)
        return value

    def notes(self) -> Tree:
        """The bounds, and the releases so far."""
        return self.bounds, self._released, dict(self._uses), self._cohorts

    def take_notes(self, notes: Tree) -> None:
        """Continue from these."""
        self.bounds, self._released, uses, self._cohorts = notes
        self._uses = dict(uses)

    def _close(self, tokens: Iterator[int]) -> None:
        """Count the exchanges of cohorts that will have no more."""
        for token in tokens:
            row = self._samplings.index(self._draws[token].sampling)
            uses = jnp.minimum(self._uses.pop(token), MOST_RELEASES)
            self._cohorts = self._cohorts.at[row, uses].add(1)

    def releases(self) -> Releases:
        """What the round has released; called when it is over."""
        self._close(iter(tuple(self._uses)))
        return Releases(tuple(self._samplings), self._cohorts[: len(self._samplings)])


# ---- what is computed


def clipped_upload(
    client: Client, reply: Tree, bound: jax.Array, *sent: Tree, by_block: bool, around: Tree
) -> tuple[Tree]:
    """The way of a client's upload, clipped."""
    way, _ = clipped_and_within(client, reply, bound, *sent, by_block=by_block, around=around)
    return (way,)


def clipped_and_within(
    client: Client, reply: Tree, bound: jax.Array, *sent: Tree, by_block: bool, around: Tree
) -> tuple[Tree, Float[Array, ""]]:
    """The way of a client's upload, clipped, and whether it was within, as 1/2 or -1/2."""
    centre = _filled(around, iter(sent), reply)
    way, is_within = clipped(tree.sub(reply, centre), bound, by_block)
    return way, is_within - 0.5


def noised_upload(
    client: Client,
    reply: Tree,
    numbers: tuple[jax.Array, jax.Array, jax.Array | None],
    *sent: Tree,
    by_block: bool,
    around: Tree,
) -> tuple[Tree, ...]:
    """A client's upload, clipped and with its part of the noise.

    If the bounds move, it also says whether it was within them, as 1/2 or -1/2 with noise.
    """
    bound, std, bit_std = numbers
    values = iter(sent)
    centre = _filled(around, values, reply)
    way, is_within = clipped(tree.sub(reply, centre), bound, by_block)
    upload_key, bit_key = jax.random.split(client.key)
    std = std * _root(reply, by_block)
    upload = tree.add(tree.add(centre, way), gaussian(upload_key, reply, std))
    if bit_std is None:
        return (upload,)
    return upload, is_within - 0.5 + gaussian(bit_key, is_within, bit_std)


def _filled(around: Tree, values: Iterator[Tree], reply: Tree) -> Tree:
    """What was sent in the places where something was, and zeros elsewhere."""
    if isinstance(around, tuple):
        return tuple(_filled(a, values, part) for a, part in zip(around, reply, strict=True))
    return next(values) if around else tree.zeros_like(reply)


def _root(upload: Tree, by_block: bool) -> float:
    """√B for an upload of B blocks that are clipped each by itself."""
    return math.sqrt(len(upload)) if by_block and isinstance(upload, tuple) else 1.0


def _is_placed(node: object) -> bool:
    return isinstance(node, Placed)


def _is_around(node: object) -> bool:
    return node is None or isinstance(node, Placed)


def _refusal(word: str, why: str) -> ValueError:
    return ValueError(
        f"{word} cannot be private: {why}. Choose an algorithm whose uploads are means."
    )
