"""Local steps on all blocks at once: the frame of the single-loop methods.

Blocks u with averaged maps s_i come from a view of the problem
(:mod:`rookery.algorithms.shared.views`). With τ_i local steps of a rule with size η:

    down    u                                                   (and d, if it is averaged)
    client  w = u,  Q = 0
            τ_i times, along the estimate d of s_i(w; ξ):  Q = Q + d,  w = w - η d
    up      w,  Q  or  Q / τ_i                                  (and d, if it is averaged)
    server  a step of its own rule against the mean, and projections

What fills the frame is the algorithm's choice, or stands in a file of its own:

    d               :mod:`rookery.algorithms.shared.estimators`
    up, encoded     :mod:`rookery.algorithms.shared.compression`
    the mean        :mod:`rookery.algorithms.shared.weighting`, of a sampled cohort
    η, not given    :mod:`rookery.algorithms.shared.local_sizes`

All blocks of a local step move at once, from the old values. A step has one sample of each split
that the view names: independent ones for the levels of a bilevel problem, unless the view shares
one (:class:`BilevelView`).
"""

import abc
from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local, local_sizes
from rookery.algorithms.shared.auto import Curvature, DoG
from rookery.algorithms.shared.blocks import descend, evaluate, own_maps
from rookery.algorithms.shared.compression import Feedback, mean_of_encoded
from rookery.algorithms.shared.curvature import first_states
from rookery.algorithms.shared.estimators import AbstractEstimator, PlainEstimator
from rookery.algorithms.shared.on_view import AbstractOnView
from rookery.algorithms.shared.step_rule import (
    StepRule,
    StepRules,
    each_rule,
    inner_rules,
    kept_opts,
    opts_to_keep,
    starting_opts,
    step_rule,
)
from rookery.algorithms.shared.views import AbstractView, Blocks, view_of
from rookery.algorithms.shared.weighting import Weighting, check_weighting, weighed
from rookery.problem.constraints import all_projected
from rookery.program.codec import AbstractCodec
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import check_rule
from rookery.program.participation import Cohort
from rookery.types import Count, Key, Problem, Tree


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

    @property
    def u(self) -> Blocks:
        """All blocks."""
        return *self.variables, *self.added


class MeanReply(NamedTuple):
    """What an exchange gives.

    Attributes:
        reply: the mean of the clients' replies.
        d: that of their estimates; empty unless they are averaged.
        own: what clients keep of their optimisers' states.
        feedback: what is known of the clients' replies; empty unless there is error feedback.
    """

    reply: Tree
    d: Blocks
    own: Tree
    feedback: Tree


class LocalSteps(NamedTuple):
    """What a client's local steps come to.

    Attributes:
        w: the blocks after the last step.
        total: Q, the sum of the directions that the steps followed.
        steps: τ_i.
    """

    w: Blocks
    total: Blocks
    steps: Count


class AbstractLocalBlocks(AbstractOnView):
    """Local steps on the blocks of a view, of which x is the first.

    Args:
        outer_lr: step rule of x on the clients.
        inner_lr: of all other blocks, one for all or a tuple with one each; in a bilevel problem
            those of y and v.
        local_steps: τ_i, one number or one per client.
        estimator: of the maps along the local steps.
        first_batch: rows per client for the first evaluation, which starts an estimate that is
            averaged and a size that is not given; None means all rows.
        weighting: of the replies of a sampled cohort. "unbiased" weighs by (m / |C|) p_i, whose sum
            is one on average; "normalised" divides by their sum, with less variance and, if
            clients' weights differ, with bias. For equal weights they are the same. Iterates are
            weighed as changes; averaged estimates are always normalised.
        view: how the problem is seen as blocks; by its class if None.
        codec: compressor of the replies (:mod:`rookery.program.codec`), of changes if they are
            iterates; None sends them as they are.
        error_feedback: whether clients send differences from what the server knows of their
            replies, as EF21 and EF-SOBA do; the server then steps along the mean of what all
            clients sent last. Needed by biased codecs, and by others where clients differ.
    """

    projects: ClassVar[bool] = True
    is_local: ClassVar[bool] = True
    sends_iterates: ClassVar[bool]
    """Whether replies are blocks after a client's steps, which are compressed as changes."""

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    inner_lr: StepRules = eqx.field(converter=inner_rules, default_factory=Curvature)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    estimator: AbstractEstimator = eqx.field(default_factory=PlainEstimator)
    first_batch: int | None = None
    weighting: Weighting = "normalised"
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
        check_weighting(self.weighting, self.clients)
        local.check_local_steps("local_steps", self.local_steps)
        if self.first_batch is not None:
            check.count("first_batch", self.first_batch)
            rules = each_rule(self.outer_lr, self.inner_lr, 2)
            if not self.estimator.is_averaged and not any(isinstance(r, DoG) for r in rules):
                raise ValueError(
                    f"first_batch={self.first_batch} of {self.name} would not be used: its steps "
                    f"are given, and {type(self.estimator).__name__} needs no first estimate. "
                    "Leave it out."
                )

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
        is_fresh = not self.estimator.is_averaged and not self.error_feedback
        is_followed = is_fresh and self.local_steps == 1
        own = first_states(view, rules, kept_opts(rules, u), u, is_followed=is_followed)
        feedback = Feedback.of(self._reply_like(u)) if self.error_feedback else ()
        return LocalBlocksState(variables, added, d, self.first_opts(problem, u), own, feedback)

    def first_opts(self, problem: Problem, u: Blocks) -> tuple[Tree, ...]:
        """The states of the server's rules before the first step; most methods have none."""
        return ()

    @abc.abstractmethod
    def reply(self, steps: LocalSteps) -> Tree:
        """What goes up, without the estimate; computed on the client."""

    def mean_reply(
        self, fed: AbstractFederation, problem: Problem, state: LocalBlocksState, key: Key
    ) -> MeanReply:
        """One exchange: the local steps of a cohort, and the mean of what its clients send."""
        who, sample_key = jax.random.split(key)
        cohort, u = fed.sample(self.clients, who), state.u
        d = self._first_estimate(fed, problem, cohort, u, state.d, sample_key)
        sizes = {"first_batch": self.first_batch, "is_alone": self.local_steps != 1}
        own = local_sizes.sized(fed, problem, self, cohort, u, state.own_opts, key, **sizes)
        at = fed.broadcast(cohort, (u, d))  # ------------------------------- down  u (and d)
        settings = {"key": sample_key, "problem": problem, "algorithm": self}
        up, own = local.map_steps(fed, cohort, own, local_block_steps, at, **settings)
        with fed.outer():
            if self.codec is None:
                around = (next(iter(at)), None) if self.sends_iterates else None
                reply, d = fed.mean(up, around=around)  # ------------------- up    reply (and d)
                feedback = ()
            else:
                replies, _ = up
                how = {"codec": self.codec, "like": self._reply_like(u), "known": state.feedback}
                reply, feedback = mean_of_encoded(fed, replies, key=sample_key, **how)  # up  C(..)
                reply = tree.add(u, reply) if self.sends_iterates else reply
        if not self.error_feedback:  # with it, the mean is one over all clients
            around = u if self.sends_iterates else None
            reply = weighed(fed, self.weighting, cohort, reply, around=around)
        return MeanReply(reply, d, own, feedback)

    def _reply_like(self, u: Blocks) -> Tree:
        """A tree of the shapes of a reply."""
        return self.reply(LocalSteps(u, u, 1))

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
            settings = {"problem": problem, "view": self.view, "batch_size": self.first_batch}
            d_i = fed.map(own_maps, at, key=key, round=0, **settings)
            with fed.outer():
                return fed.mean(d_i)  # ------------------------------------- up    s_i(u)

        return fed.when(jnp.asarray(fed.round) == 0, first, d)

    def inside(self, problem: Problem, u: Blocks) -> tuple[Blocks, Blocks]:
        """The problem's own variables in their sets, and the added blocks."""
        n = len(problem.variables)
        return all_projected(problem, u[:n]), u[n:]


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
    reply = algorithm.reply(LocalSteps(w, total, tau))
    if algorithm.codec is not None and algorithm.sends_iterates:
        reply = tree.sub(reply, u)
    return (reply, d if estimator.is_averaged else ()), opts_to_keep(rules, opts)
