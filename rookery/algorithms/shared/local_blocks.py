"""Local steps on all blocks at once: the frame of the single-loop methods.

Blocks u with averaged maps s_i come from a view of the problem
(:mod:`rookery.algorithms.shared.views`). With τ_i local steps of a rule with size η:

    down    u                                                   (and d, if it is averaged)
    client  w = u,  Q = 0
            τ_i times, along the estimate d of s_i(w; ξ):  Q = Q + d,  w = w - η d
    up      w,  Q  or  Q / τ_i                                  (and d, if it is averaged)
    server  a step of its own rule against the mean, and projections

How d is made is the estimator's business (:mod:`rookery.algorithms.shared.estimators`), what goes
up and how the server steps is the algorithm's. All blocks of a local step move at once, from the
old values. Samples of the levels are independent, as the proofs want them.
"""

import abc
from dataclasses import KW_ONLY
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.auto import Curvature, DoG, Sent
from rookery.algorithms.shared.blocks import descend, evaluate
from rookery.algorithms.shared.compression import encoded_from
from rookery.algorithms.shared.curvature import measured_blocks, with_damping
from rookery.algorithms.shared.estimators import AbstractEstimator, PlainEstimator
from rookery.algorithms.shared.on_view import AbstractOnView
from rookery.algorithms.shared.step_rule import (
    StepRule,
    StepRules,
    all_observed,
    direction_of,
    each_rule,
    inner_rules,
    kept_opts,
    opts_to_keep,
    starting_opts,
    step_rule,
)
from rookery.algorithms.shared.views import AbstractView, Blocks, view_of
from rookery.problem.constraints import all_projected
from rookery.program.codec import AbstractCodec
from rookery.program.federation import AbstractFederation, Client, Placed
from rookery.program.memory import Memory, check_rule
from rookery.program.participation import AbstractParticipation, Cohort, Everyone, Uniform
from rookery.types import Count, Key, Number, Problem, Tree


class LocalBlocksState(NamedTuple):
    """The blocks, first the problem's own variables, the averaged estimate and the rules' states.

    ``d`` is empty unless the estimator averages it. ``opts`` are of the server's rules, and
    ``own_opts`` is what clients keep of their optimisers' states, if anything. ``feedback`` is
    empty unless there is error feedback.
    """

    variables: Blocks
    added: Blocks
    d: Blocks
    opts: tuple[Tree, ...]
    own_opts: Tree = ()
    feedback: Tree = ()


class Feedback(NamedTuple):
    """What the server knows of the clients' replies, in the mean, and of each, kept by the client.

    Replies that are iterates are known as changes.
    """

    mean: Tree
    own: Memory


class MeanReply(NamedTuple):
    """What an exchange gives.

    Attributes:
        reply: the mean of the clients' replies.
        d: that of their estimates; empty unless they are averaged.
        own: what clients keep of their optimisers' states.
        cohort: who took part.
        feedback: the same of error feedback, if there is any.
    """

    reply: Tree
    d: Blocks
    own: Tree
    cohort: Cohort
    feedback: Tree


class LocalSteps(NamedTuple):
    """What a client's local steps come to.

    Attributes:
        w: the blocks after the last step.
        total: Q, the sum of the directions that the steps followed.
        d: the estimate at ``w``; empty unless it is averaged.
        steps: τ_i.
    """

    w: Blocks
    total: Blocks
    d: Blocks
    steps: Count


class AbstractLocalBlocks(AbstractOnView):
    """Local steps on the blocks of a view, of which x is the first.

    Args:
        outer_lr: step rule of x on the clients.
        inner_lr: of all other blocks, one for all or a tuple with one each; in a bilevel problem
            those of y and v.
        local_steps: τ_i, one number or one per client.
        estimator: of the maps along the local steps.
        first_batch: rows per client for the first estimate, if the estimator averages it; None is
            all rows.
        view: how the problem is seen as blocks; by its class if None.
        codec: compressor of the replies (:mod:`rookery.program.codec`), of changes if they are
            iterates; None sends them as they are.
        error_feedback: whether clients send differences from what the server knows of their
            replies, as EF21 and EF-SOBA do; the server then steps along the mean of what all
            clients sent last. Needed by biased codecs, and by others where clients differ.
    """

    projects: ClassVar[bool] = True
    is_local: ClassVar[bool] = True

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    inner_lr: StepRules = eqx.field(converter=inner_rules, default_factory=Curvature)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    estimator: AbstractEstimator = eqx.field(default_factory=PlainEstimator)
    first_batch: int | None = None
    view: AbstractView | None = None
    codec: AbstractCodec | None = None
    error_feedback: bool = False

    def __check_init__(self):
        if self.codec is not None and self.estimator.is_averaged:
            raise ValueError(
                f"codec of {self.name} compresses replies, and {type(self.estimator).__name__} "
                "sends an estimate beside them. Leave out one of the two."
            )
        if self.error_feedback:
            check_rule("error_feedback=True", self.clients)
            if self.codec is None:
                raise ValueError("error_feedback=True needs a codec, such as rk.parts.TopK(0.1).")
        local.check_local_steps("local_steps", self.local_steps)
        if self.first_batch is not None:
            check.count("first_batch", self.first_batch)

    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless the problem has blocks and the settings fit them and the clients."""
        super().check(problem, n_clients)
        local.check_local_steps("local_steps", self.local_steps, n_clients)

    def init(self, problem: Problem, *variables: Tree) -> LocalBlocksState:
        """The given variables, and what the view adds to them; no estimate yet."""
        view = view_of(problem, self.view)
        added = view.added(problem, *variables)
        u = (*variables, *added)
        d = tree.zeros_like(u) if self.estimator.is_averaged else ()
        rules = each_rule(self.outer_lr, self.inner_lr, len(u))
        own = with_damping(view, rules, kept_opts(rules, u))
        opts = self.first_opts(problem, u)
        if not self.error_feedback:
            return LocalBlocksState(variables, added, d, opts, own)
        zero = tree.zeros_like(self.reply(LocalSteps(u, u, (), 1)))
        return LocalBlocksState(variables, added, d, opts, own, Feedback(zero, Memory.of(zero)))

    def first_opts(self, problem: Problem, u: Blocks) -> tuple[Tree, ...]:
        """The states of the server's rules before the first step; most methods have none."""
        return ()

    @abc.abstractmethod
    def reply(self, steps: LocalSteps) -> Tree:
        """What goes up, without the estimate; computed on the client."""

    def mean_reply(
        self,
        fed: AbstractFederation,
        problem: Problem,
        state: LocalBlocksState,
        key: Key,
        *,
        of_iterates: bool,
    ) -> MeanReply:
        """One exchange; ``of_iterates`` tells whether replies are blocks after a client's steps."""
        who, sample_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        u = (*state.variables, *state.added)
        d = self._first_estimate(fed, problem, cohort, u, state.d, sample_key)
        own = self._sized(fed, problem, cohort, u, state.own_opts, key)
        at = fed.broadcast(cohort, (u, d))  # ------------------------------- down  u (and d)
        settings = {"problem": problem, "algorithm": self}
        if self.codec is not None:
            return self._decoded(fed, state, cohort, own, at, sample_key, of_iterates, **settings)
        step = local_block_steps
        up, own = local.map_steps(fed, cohort, own, step, at, key=sample_key, **settings)
        with fed.outer():
            around = (next(iter(at)), None) if of_iterates else None
            reply, d = fed.mean(up, around=around)  # ----------------------- up    reply (and d)
        return MeanReply(reply, d, own, cohort, ())

    def _decoded(
        self,
        fed: AbstractFederation,
        state: LocalBlocksState,
        cohort: Cohort,
        own: Tree,
        at: Placed,
        key: Key,
        of_iterates: bool,
        **settings: object,
    ) -> MeanReply:
        """The exchange with encoded replies."""
        assert self.codec is not None
        u, codec, known = (*state.variables, *state.added), self.codec, state.feedback
        like = self.reply(LocalSteps(u, u, (), 1))
        g_i = fed.recall(cohort, known.own) if self.error_feedback else at  # at: not read
        settings["of_iterates"] = of_iterates
        step = encoded_block_steps
        up, own = local.map_steps(fed, cohort, own, step, at, g_i, key=key, **settings)
        sent, g_i = up
        with fed.outer():
            reply = fed.mean(sent, decode=lambda row: codec.decode(row, like))  # up  encoded reply
        if self.error_feedback:
            reply = tree.axpy(fed.weight_of(cohort), reply, known.mean)
            known = Feedback(reply, fed.keep(known.own, g_i))
        reply = tree.add(u, reply) if of_iterates else reply
        return MeanReply(reply, (), own, cohort, known)

    def _first_estimate(
        self,
        fed: AbstractFederation,
        problem: Problem,
        cohort: Cohort,
        u: Blocks,
        d: Blocks,
        key: Key,
    ) -> Blocks:
        """The mean of the maps in round 0, if the estimate is averaged; otherwise ``d``."""
        if not self.estimator.is_averaged:
            return d

        def first(d: Blocks) -> Blocks:
            at = fed.broadcast(cohort, u)  # -------------------------------- down  u
            d_i = fed.map(first_maps, at, key=key, problem=problem, algorithm=self)
            with fed.outer():
                return fed.mean(d_i)  # ------------------------------------- up    s_i(u)

        return fed.when(jnp.asarray(fed.round) == 0, first, d)

    def _sized(
        self,
        fed: AbstractFederation,
        problem: Problem,
        cohort: Cohort,
        u: Blocks,
        own: Tree,
        key: Key,
    ) -> Tree:
        """The states of rules that find their size, measured if it is due.

        The first size of :class:`DoG` needs a direction: round 0 asks for the maps at the start.
        """
        rules = each_rule(self.outer_lr, self.inner_lr, len(u))
        how = {"clients": self.clients, "batch_size": self.batch_size}
        how["is_alone"] = self.local_steps != 1
        measure_key, first_key = jax.random.fold_in(key, 2), jax.random.fold_in(key, 3)
        own = measured_blocks(fed, problem, self.view, rules, own, u, measure_key, **how)
        if not any(isinstance(rule, DoG) for rule in rules):
            return own

        def first(own: Tree) -> Tree:
            at = fed.broadcast(cohort, u)  # -------------------------------- down  u
            s_i = fed.map(first_maps, at, key=first_key, problem=problem, algorithm=self)
            return all_observed(rules, fed.mean(s_i), own, u)  # ------------ up    s_i(u)

        return fed.when(jnp.asarray(fed.round) == 0, first, own)

    def after(self, own: Tree, u: Blocks, new: Blocks) -> Tree:
        """The states after a round that moved u: the mean directions were (u - new) / size."""
        if not isinstance(own, Sent):
            return own
        rules = each_rule(self.outer_lr, self.inner_lr, len(u))
        along = tuple(map(direction_of, rules, own.opts, u, new))
        return all_observed(rules, along, own, new)

    def inside(self, problem: Problem, u: Blocks) -> tuple[Blocks, Blocks]:
        """The problem's own variables in their sets, and the added blocks."""
        n = len(problem.variables)
        return all_projected(problem, u[:n]), u[n:]


def first_maps(
    client: Client, u: Blocks, *, problem: Problem, algorithm: AbstractLocalBlocks
) -> Blocks:
    """s_i(u; ξ) in round 0, on the rows of the first estimate."""
    view, batch_size = algorithm.view, algorithm.first_batch
    return evaluate(client, problem, view, batch_size, client.key, u, round=0)[0]


def local_block_steps(
    client: Client,
    start: tuple[Blocks, Blocks],
    kept: tuple[Tree, ...] | None = None,
    *,
    problem: Problem,
    algorithm: AbstractLocalBlocks,
    round: Count,
) -> tuple[tuple[Tree, Blocks], tuple[Tree, ...]]:
    """The local steps of a round: what goes up, and what the client keeps."""
    u, d = start
    estimator = algorithm.estimator
    rules = each_rule(algorithm.outer_lr, algorithm.inner_lr, len(u))
    n, tau = len(problem.variables), local.steps_of(client, algorithm.local_steps)

    def maps(*points, key, batch_size):
        view = algorithm.view
        return evaluate(client, problem, view, batch_size, key, *points, round=round)

    def step(k, carry):
        w, opts, d, total = carry
        w = (*all_projected(problem, w[:n]), *w[n:])

        def move(direction):
            return descend(rules, direction, opts, w, round, None, tau)

        key, batch_size = jax.random.fold_in(client.key, k), algorithm.batch_size
        (w, opts), d, along = estimator.step(
            client, maps, move, w, d, key=key, batch_size=batch_size, t=round * tau + k
        )
        return w, opts, d, tree.add(total, along)

    zero = tree.zeros_like(u)
    first = u, starting_opts(rules, u, kept), d if estimator.is_averaged else zero, zero
    most = local.most_steps(algorithm.local_steps)
    w, opts, d, total = client.repeat(tau, step, first, most=most)
    d = d if estimator.is_averaged else ()
    reply = algorithm.reply(LocalSteps(w, total, d, tau))
    return (reply, d), opts_to_keep(rules, opts)


def encoded_block_steps(
    client: Client,
    start: tuple[Blocks, Blocks],
    known: Tree,
    kept: tuple[Tree, ...] | None = None,
    *,
    problem: Problem,
    algorithm: AbstractLocalBlocks,
    round: Count,
    of_iterates: bool,
) -> tuple[tuple[tuple[Tree, ...], Tree], tuple[Tree, ...]]:
    """The same, encoded: the message, what the server knows after it, and what the client keeps."""
    assert algorithm.codec is not None
    how = {"problem": problem, "algorithm": algorithm, "round": round}
    (reply, _), kept = local_block_steps(client, start, kept, **how)
    reply = tree.sub(reply, start[0]) if of_iterates else reply
    known = known if algorithm.error_feedback else None
    key = jax.random.fold_in(client.key, 1 << 20)  # no step has it
    return encoded_from(algorithm.codec, reply, known, key), kept


Weighting = Literal["unbiased", "normalised"]
"""How the replies of a sampled cohort are weighed.

unbiased: by (m / |C|) w_i, whose sum is one on average; normalised: by w_i divided by their sum.
"""


def check_weighting(weighting: Weighting, clients: AbstractParticipation) -> None:
    """Raise unless a cohort's replies can be weighed like this."""
    check.one_of("weighting", weighting, ["unbiased", "normalised"])
    if weighting == "unbiased" and not isinstance(clients, Everyone | Uniform):
        raise ValueError(
            'weighting="unbiased" divides by the probability with which a uniform cohort holds a '
            f"client, but clients is {type(clients).__name__}. Use clients=n, or "
            'weighting="normalised": the means of Proportional and Weighted are unbiased as they '
            "are."
        )


def weighting_factor(fed: AbstractFederation, weighting: Weighting, cohort: Cohort) -> Number:
    """By how much the sum of weighted replies exceeds their mean."""
    if weighting == "normalised":
        return 1.0
    return fed.weight_of(cohort) * (fed.n_clients / jnp.sum(cohort.active))
