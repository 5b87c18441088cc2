"""FedMSA: federated approximation of several coupled sequences.

D. A. Tarzanagh, M. Li, P. Sharma, S. Oymak. Federated multi-sequence stochastic approximation with
local hypergradient estimation. 2023, arXiv:2306.01648.

    paper           code                meaning
    x, z^1 .. z^N   u, the blocks       what is sought; those of a problem follow from its view
    P, S^n          view.maps           one map per block, zero in the mean at the solution
    α, β_n          outer_lr, inner_lr  step rules of x and of the other blocks
    ρ               renewal             how much of the direction is new in a round
    K               local_steps         local steps of a round
    b_0             first_batch         rows per client in round 0
    h, q^n          h                   the global direction of every block

With D the size of all blocks, m clients in exchange A and c in exchange B, a round costs

                    exchanges   down                        up
    round 0         2           m D + c D                   m D + c D
    later rounds    2           m 2 D + c D                 m D + c D

since u was sent in A and need not be sent again in B: there only h goes down, and u to clients that
were not in A. (The paper's own count has 2 D down in B.) A round that puts its
iterate into a :class:`RandomIterate` has one exchange more, with one client, nothing down and D up;
a warm-up adds its own to round 0. Evaluations of all maps: one per client of A in round 0 and two
in later rounds, also with ρ = 1; 2 (K - 1) per client of B. With ``renewal=None`` every round has
one per client of A and sends D down; with ``fresh=False`` there are K per client of B.

Departures from the paper: means over clients, not sums; one sample serves both points of a
difference; ρ = 1 and K = 1 in round 0 only; the random output is uniform over the iterates that
exist; the first local step is along h and needs no evaluation; the maps of bilevel problems and
compositions are corrected (:mod:`rookery.algorithms.shared.views`). With several clients in B their
iterates are averaged, as in the paper's experiments; its theorem has one.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.fedmsa.output import AbstractOutput, Kept, LastIterate
from rookery.algorithms.fedmsa.warmup import AbstractWarmUp
from rookery.algorithms.shared.auto import Curvature, DoG, ServerOpts
from rookery.algorithms.shared.blocks import (
    Radius,
    check_radius,
    descend,
    evaluate,
    own_maps,
)
from rookery.algorithms.shared.context import Context
from rookery.algorithms.shared.curvature import first_states, measured_blocks
from rookery.algorithms.shared.local import map_steps
from rookery.algorithms.shared.on_view import AbstractOnView
from rookery.algorithms.shared.step_rule import (
    StepRule,
    StepRules,
    all_observed,
    each_rule,
    inner_rules,
    is_keeping,
    kept_opts,
    opts_to_keep,
    starting_opts,
    step_rule,
    step_rules,
)
from rookery.algorithms.shared.views import AbstractView, Blocks, view_of
from rookery.problem.constraints import all_projected
from rookery.program.federation import AbstractFederation, Cached, Client
from rookery.program.participation import AbstractParticipation, Everyone, Uniform, participation
from rookery.rng import below
from rookery.types import BatchSize, Count, Key, Number, Problem, Tree


class MSAState(NamedTuple):
    """The blocks u_r, first the problem's own variables; u_{r-1}, h_{r-1}, and the output kept.

    ``own_opts`` is what the clients keep of their optimisers' states, if anything.
    """

    variables: Blocks
    added: Blocks
    previous: Blocks
    h: Blocks
    kept: Kept | None
    own_opts: Tree = ()


class FedMSA(AbstractOnView):
    """Moves all blocks at once, along a global direction that local differences keep fresh.

    Args:
        outer_lr: α, the rule of the local steps of x, or a size for all K steps of a round
            (:class:`PerCall`), of which round 0 takes one. With an optimiser the local differences
            still keep the direction fresh, but the steps are no longer along its mean over clients.
        inner_lr: the rules of all other blocks, one for all or a tuple with one each; in a bilevel
            problem those of y and v, of which v's should not be the larger.
        local_steps: K, local steps of a round.
        renewal: ρ, above 0 and at most 1. At 1 the direction is that of the round alone. None is 1
            too, and known when the program is compiled: the previous blocks are neither sent nor
            evaluated, which halves the work of exchange A. With all clients and all their rows in
            A the direction is the same whatever ρ is.
        clients: who takes the local steps; one client as in the theorem if not given.
        momentum_clients: who computes the direction; all clients if None, as in the paper. With
            fewer, h has the noise of sampling: at a fixed point its variance is ρ / (2 - ρ) times
            that of one round's replies, so a small ρ averages it over about 1 / ρ rounds. The
            iterates then converge to a neighbourhood of the solution; as small steps average too,
            they gain less from ρ than h does.
        momentum_batch: rows per evaluation for the direction, None for all; ``"same"`` is
            ``batch_size``, which is then that of the local steps alone.
        first_batch: rows per evaluation in round 0; the theorem needs K times the number of rounds.
        fresh: whether every local step draws rows of its own, as in the paper. If not, one sample
            serves the local steps of a client in a round. Then s_i(w^{k-1}) is known from the step
            before, and K evaluations take the place of 2 (K - 1). With full batches both are equal.
        view: how the problem is seen as blocks; by its class if None.
        inner_radius: the largest norm of the blocks other than x, one for all or a tuple with one
            each, where inf is no bound; steps beyond it are pulled back. None bounds none.
        warm_up: makes better initial blocks in round 0, with the clients of the first exchange
            (:class:`BilevelWarmUp`, :class:`CompositionWarmUp`).
        output: :class:`LastIterate` or :class:`RandomIterate`.

    >>> FedMSA(outer_lr=0.05, inner_lr=(0.1, 0.05), local_steps=5, clients=10).renewal
    0.5
    """

    projects: ClassVar[bool] = True
    is_local: ClassVar[bool] = True

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule, default_factory=DoG)
    inner_lr: StepRules = eqx.field(converter=inner_rules, default_factory=Curvature)
    local_steps: int = 1
    renewal: float | None = 0.5
    clients: AbstractParticipation = eqx.field(
        converter=participation, default_factory=lambda: Uniform(1)
    )
    momentum_clients: AbstractParticipation = eqx.field(
        converter=participation, default_factory=Everyone
    )
    momentum_batch: int | Literal["same"] | None = "same"
    first_batch: int | None = None
    fresh: bool = True
    view: AbstractView | None = None
    inner_radius: Radius = eqx.field(converter=step_rules, default=None)
    warm_up: AbstractWarmUp | None = None
    output: AbstractOutput = eqx.field(default_factory=LastIterate)

    def __check_init__(self):
        if not isinstance(self.output, LastIterate) and self._is_keeping():
            raise ValueError(
                f"{type(self.output).__name__} asks a client to take its steps again, from the "
                "state that its optimiser began with, and keep=True replaces that state. Leave "
                "keep out, or use LastIterate."
            )
        check.count("local_steps", self.local_steps)
        if self.renewal is not None:
            check.fraction("renewal", self.renewal)
        if isinstance(self.momentum_batch, str):
            check.one_of("momentum_batch", self.momentum_batch, ["same"])
        elif self.momentum_batch is not None:
            check.count("momentum_batch", self.momentum_batch)
        if not isinstance(self.fresh, bool):
            raise TypeError(f"fresh must be True or False, got {self.fresh!r}.")
        check_radius("inner_radius", self.inner_radius)
        if self.first_batch is not None:
            check.count("first_batch", self.first_batch)

    def check(self, problem: Problem, n_clients: int) -> None:
        """Raise unless the problem has blocks and the settings fit them and the clients."""
        super().check(problem, n_clients)
        others = view_of(problem, self.view).n_blocks(problem) - 1
        check_radius("inner_radius", self.inner_radius, others)
        self.momentum_clients.check(n_clients)
        if self.warm_up is not None:
            self.warm_up.check(problem, n_clients)

    def init(self, problem: Problem, *variables: Tree) -> MSAState:
        """The given variables, and what the view adds to them; no direction yet."""
        view = view_of(problem, self.view)
        u = (*variables, *view.added(problem, *variables))
        rules = each_rule(self.outer_lr, self.inner_lr, len(u))
        n, how = len(variables), {"is_followed": self.local_steps == 1}
        own = first_states(view, rules, kept_opts(rules, u), u, **how)
        return MSAState(variables, u[n:], u, tree.zeros_like(u), self.output.init(variables), own)

    def round(
        self, fed: AbstractFederation, problem: Problem, state: MSAState, key: Key
    ) -> MSAState:
        """Exchange A finds the direction, exchange B follows it."""
        momentum_key, local_key, output_key, warm_key = jax.random.split(key, 4)
        is_first = jnp.asarray(fed.round) == 0
        steps = jnp.where(is_first, 1, self.local_steps)  # K_r
        n = len(state.variables)

        u = self._warmed_up(fed, problem, (*state.variables, *state.added), is_first, warm_key)
        at_u = fed.cache(u)
        own = self._measured(fed, problem, at_u, state.own_opts, key)
        h = self._direction(fed, problem, at_u, state, is_first, momentum_key)
        along_h = fed.cache(h)
        kept = 0.0 if self.renewal is None else 1 - self.renewal
        fresh = tree.axpy(-kept, state.h, h)
        own = all_observed(each_rule(self.outer_lr, self.inner_lr, len(u)), h, own, u, fresh)

        who, sample_key = jax.random.split(local_key)
        settings = {"key": sample_key, "problem": problem, "algorithm": self}
        cohort = fed.sample(self.clients, who)
        start = fed.broadcast(cohort, at_u, along_h)  # --------------------- down  h (and u)
        settings["steps"] = steps
        w_i, own = map_steps(fed, cohort, own, local_steps, *start, **settings)
        with fed.outer():
            w = fed.mean(w_i, around=start[0])  # --------------------------- up    w

        who, which = jax.random.split(output_key)
        slot = below(who, (), len(cohort))

        def ask(k):
            """The k-th iterate of one client, which repeats its steps up to k."""
            alone = cohort.where(jnp.arange(len(cohort), dtype=jnp.int32) == slot)
            start = fed.broadcast(alone, at_u, along_h)  # ------------------ down  nothing new
            again = own if isinstance(own, ServerOpts) else ()
            how = {**settings, "steps": k - 1}
            w_i, _ = map_steps(fed, alone, again, local_steps, *start, **how)
            with fed.outer():
                w_k = fed.sum(w_i)  # --------------------------------------- up    w^k
            return all_projected(problem, w_k[:n])

        kept = self.output.renew(fed, state.kept, u[:n], steps, ask, which)
        return MSAState(all_projected(problem, w[:n]), w[n:], u, h, kept, own)

    def solution(self, state: MSAState) -> tuple[Tree, ...]:
        """The problem's own variables, as the view has them."""
        return super().solution(state) if state.kept is None else state.kept.iterate

    def _is_keeping(self) -> bool:
        """Whether clients keep the state of an optimiser."""
        others = self.inner_lr if isinstance(self.inner_lr, tuple) else (self.inner_lr,)
        return any(map(is_keeping, (self.outer_lr, *others)))

    def _measured(self, fed, problem, u: Cached, own: Tree, key: Key) -> Tree:
        """The states of the rules, with sizes for this round where they are measured."""
        rules, key = (
            each_rule(self.outer_lr, self.inner_lr, len(u.value)),
            jax.random.fold_in(key, 4),
        )
        how = {"clients": self.momentum_clients, "batch_size": self.batch_size}
        how["is_alone"] = self.local_steps != 1
        return measured_blocks(fed, problem, self.view, rules, own, u, key, **how)

    def _warmed_up(self, fed, problem, u: Blocks, is_first, key: Key) -> Blocks:
        """The blocks after the warm-up in round 0; the same blocks in later rounds."""
        if self.warm_up is None:
            return u
        warm_up = self.warm_up
        context = Context(fed, problem, self.momentum_clients, self.batch_size)
        return fed.when(is_first, lambda u: warm_up(context, u, key), u)

    def _direction(self, fed, problem, u: Cached, state: MSAState, is_first, key: Key) -> Blocks:
        """Exchange A:  h = (1 - ρ) h + avg [ s_i(u) - (1 - ρ) s_i(u_prev) ],  ρ = 1 in round 0."""
        who, sample_key = jax.random.split(key)
        renewal, batch_size = self.renewal, self._momentum_batch()

        def at_once(batch_size, round):
            cohort = fed.sample(self.momentum_clients, who)
            at = fed.broadcast(cohort, u)  # -------------------------------- down  u
            settings = {"problem": problem, "view": self.view}
            settings |= {"batch_size": batch_size, "round": round}
            s_i = fed.map(own_maps, at, key=sample_key, **settings)
            with fed.outer():
                return fed.mean(s_i)  # ------------------------------------- up    s_i(u)

        def first(h):
            return at_once(self.first_batch, 0)

        if renewal is None and batch_size == self.first_batch:
            return at_once(batch_size, fed.round)

        def later(h):
            if renewal is None:
                return at_once(batch_size, fed.round)
            cohort = fed.sample(self.momentum_clients, who)
            at, before = fed.broadcast(cohort, u, state.previous)  # -------- down  u, u_prev
            settings = {"problem": problem, "algorithm": self, "round": fed.round}
            settings |= {"batch_size": batch_size, "renewal": renewal}
            delta_i = fed.map(own_difference, at, before, key=sample_key, **settings)
            with fed.outer():
                delta = fed.mean(delta_i)  # -------------------------------- up    delta_i
            return tree.axpy(1 - renewal, h, delta)

        return fed.when(~is_first, later, fed.when(is_first, first, state.h))

    def _momentum_batch(self) -> BatchSize:
        """Rows per evaluation for the direction."""
        return self.batch_size if self.momentum_batch == "same" else self.momentum_batch


def own_difference(
    client: Client,
    u: Blocks,
    previous: Blocks,
    *,
    problem: Problem,
    algorithm: FedMSA,
    batch_size: BatchSize,
    renewal: Number,
    round: Count,
) -> Blocks:
    """s_i(u; ξ) - (1 - ρ) s_i(u_prev; ξ), with one sample."""
    view, key, points = algorithm.view, client.key, (u, previous)
    new, old = evaluate(client, problem, view, batch_size, key, *points, round=round)
    return tree.axpy(renewal - 1, old, new)


def local_steps(
    client: Client,
    u: Blocks,
    h: Blocks,
    kept: tuple[Tree, ...] | None = None,
    *,
    problem: Problem,
    algorithm: FedMSA,
    round: Count,
    steps: Count,
) -> tuple[Blocks, tuple[Tree, ...]]:
    """w^1 = u, d^1 = h;  w^{k+1} = w^k - a d^k,  d^k = d^{k-1} + s_i(w^k; ξ) - s_i(w^{k-1}; ξ)."""
    rules = each_rule(algorithm.outer_lr, algorithm.inner_lr, len(u))
    n = len(problem.variables)

    def move(w, opts, d):
        return descend(rules, d, opts, w, round, algorithm.inner_radius, algorithm.local_steps)

    def maps(key, *points):
        view, batch_size = algorithm.view, algorithm.batch_size
        return evaluate(client, problem, view, batch_size, key, *points, round=round)

    def step(k, carry):
        (w, opts), before, d = carry
        w = (*all_projected(problem, w[:n]), *w[n:])
        new, old = maps(jax.random.fold_in(client.key, k), w, before)
        d = tree.add(d, tree.sub(new, old))
        return move(w, opts, d), w, d

    def step_on_one_sample(k, carry):
        (w, opts), old, d = carry
        w = (*all_projected(problem, w[:n]), *w[n:])
        (new,) = maps(client.key, w)
        d = tree.add(d, tree.sub(new, old))
        return move(w, opts, d), new, d

    first, most = move(u, starting_opts(rules, u, kept), h), algorithm.local_steps - 1
    if algorithm.fresh:
        (w, opts), *_ = client.repeat(steps - 1, step, (first, u, h), most=most)
    else:
        start = first, maps(client.key, u)[0], h
        (w, opts), *_ = client.repeat(steps - 1, step_on_one_sample, start, most=most)
    return w, opts_to_keep(rules, opts)
