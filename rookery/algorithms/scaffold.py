"""SCAFFOLD: local steps whose drift is corrected by control variates that clients remember.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. SCAFFOLD: stochastic
controlled averaging for federated learning. ICML 2020, arXiv:1910.06378.

    paper   code            meaning
    x       blocks          all variables of the problem
    g_i     field           what a client would subtract: its gradient, or another vector field
    c, c_i  c, own          control variates of the server and of the clients
    η_l     lr              local step size, or a schedule
    η_g     server_lr       step rule of the server
    K       local_steps     local steps between two averages
    S       clients         who takes part in an exchange

A local step subtracts  η_l (g_i(w; ξ) - c_i + c).  After K of them, from w to w_i, the client's
variate becomes

    option I    g_i(w)  at the server's w, on all rows of the client
    option II   c_i - c + (w - w_i) / (K η_l),  the mean of its local values of g_i

Where the mean field is zero, c_i = g_i and c = 0 leave every client at rest, however many steps it
takes: by both options the method converges to that point.

Cost of a round: 1 exchange, twice the blocks down (w, c) and up (both changes); the c_i stay with
the clients. Option I costs one more pass over the client's rows. Departures from the paper: c moves
by the weight of the cohort among all clients, which is its |S| / N when all weights are equal, so
that c stays the weighted mean of the c_i; clients may take unequal numbers of steps. With a robust
rule clients send c_i in place of its change, and c moves towards the rule's value of these by that
weight: a sum of changes would add up, round by round, what a Byzantine client moves the rule by.
"""

import abc
from dataclasses import KW_ONLY
from typing import ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.field import Blocks
from rookery.algorithms.shared.step_rule import (
    Size,
    StepRule,
    check_divisor,
    check_size,
    first_opt,
    move,
    size_of,
    step_rule,
)
from rookery.problem.single_level import SingleLevel
from rookery.problem.splits import AbstractOneLoss
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client, Placed
from rookery.program.memory import Memory, check_rule
from rookery.types import AnyProblem, Count, Key, Sample, Tree


class ScaffoldState(NamedTuple):
    """The iterates, the control variates of the server and of every client, and the server's opt.

    ``opt`` is the state of the server's rule for all blocks, ``centre`` that of a proximal term, if
    there is one.
    """

    blocks: Blocks
    c: Blocks
    own: Memory
    opt: Tree = ()
    centre: Tree = ()


Option = Literal["I", "II"]
"""How a client renews its control variate."""

PLAIN = (
    "Local steps of SCAFFOLD are plain: by option II the new control variate is the client's move "
    "divided by K lr, which is the mean of its local gradients for plain steps alone. Use a "
    "number, a schedule or PerCall; server_lr may be an optimiser."
)
"""Why local steps of SCAFFOLD have a size."""


class AbstractScaffold(SampledAlgorithm):
    """SCAFFOLD along a vector field; a subclass says which. A cohort has no client twice.

    Args:
        local_steps: K, one number or one per client.
        server_lr: η_g, the server's step rule, for which minus the mean of the clients' moves is
            the gradient; one for all blocks together.
        option: what a client's new variate is: ``"I"``, its field at the server's iterate, or
            ``"II"``, the mean of its local fields, which costs no evaluation.
    """

    kind: ClassVar[type]  # of the problems that a subclass solves

    _: KW_ONLY
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    server_lr: StepRule = eqx.field(converter=step_rule, default=1.0)
    option: Option = eqx.field(static=True, default="II")

    @abc.abstractmethod
    def rates(self) -> tuple[Size, ...]:
        """The local step size of each block."""

    @abc.abstractmethod
    def field(self, problem: AnyProblem, blocks: Blocks, sample: Sample) -> Blocks:
        """What a step of size one subtracts from the blocks."""

    def __check_init__(self):
        local.check_fields(self)
        check.one_of("option", self.option, ["I", "II"])
        for name, value in vars(self).items():
            if name.endswith("lr") and name != "server_lr":
                check_size(self.name, name, value, PLAIN, "local")
                check_divisor(self.name, name, value)
        check_rule(self.name, self.clients)

    def check(self, problem: AbstractOneLoss, n_clients: int) -> None:
        """Raise unless the problem has the field and the settings fit the clients."""
        check_kind(self, problem, self.kind)
        local.check_fields(self, n_clients)
        self.clients.check(n_clients)

    def init(self, problem: AbstractOneLoss, *blocks: Tree) -> ScaffoldState:
        """The given iterates; all control variates are zero."""
        zeros = tree.zeros_like(blocks)
        opt = first_opt(self.server_lr, blocks)
        return ScaffoldState(blocks, zeros, Memory.of(zeros), opt, self.first_centre(blocks))

    def first_centre(self, blocks: Blocks) -> Tree:
        """Where a proximal term is centred before round 0; most methods have none."""
        return ()

    def begun(self, state: ScaffoldState, round: Count) -> ScaffoldState:
        """The state that a round begins with; methods in stages change it."""
        return state

    def round(
        self, fed: AbstractFederation, problem: AbstractOneLoss, state: ScaffoldState, key: Key
    ) -> ScaffoldState:
        """One exchange."""
        state = self.begun(state, fed.round)
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        blocks, c = fed.broadcast(cohort, state.blocks, state.c)  # ---------- down  w, c
        c_i = fed.recall(cohort, state.own)
        settings = {"problem": problem, "algorithm": self, "round": fed.round}
        changes, c_i = fed.map(controlled_steps, blocks, c, c_i, key=local_key, **settings)
        if fed.is_robust:
            # c adds up what clients turn by, and so what one that lies moves a rule by: send c_i
            first, _ = changes
            changes = Placed(cohort, (first.value, c_i.value), is_stacked=True)
        moved, turned = fed.mean(changes)  # --------------------------------- up    changes of both
        turned = tree.sub(turned, state.c) if fed.is_robust else turned
        weight = fed.weight_of(cohort)
        back = tree.scale(-1, moved)
        blocks, opt = move(self.server_lr, back, state.opt, state.blocks, fed.round)
        return state._replace(
            blocks=blocks,
            c=tree.axpy(weight, turned, state.c),
            own=fed.keep(state.own, c_i),
            opt=opt,
        )

    def solution(self, state: ScaffoldState) -> tuple[Tree, ...]:
        """The blocks."""
        return state.blocks


class Scaffold(AbstractScaffold):
    """SCAFFOLD on a single-level problem: the field is the gradient.

    >>> import rookery as rk
    >>> rk.Scaffold(lr=0.1, local_steps=5, clients=10).local_steps
    5

    Args:
        lr: η_l, of every local step, or of the whole round (:class:`PerCall`); no optimiser.
    """

    kind: ClassVar[type] = SingleLevel

    _: KW_ONLY
    lr: Size = eqx.field(converter=step_rule)

    def rates(self) -> tuple[Size, ...]:
        """One block, one step size."""
        return (self.lr,)

    def field(self, problem: SingleLevel, blocks: Blocks, sample: Sample) -> Blocks:
        """The gradient."""
        (w,) = blocks
        return (problem.gradient(w, sample),)


def controlled_steps(
    client: Client,
    blocks: Blocks,
    c: Blocks,
    c_i: Blocks,
    *,
    problem: AbstractOneLoss,
    algorithm: AbstractScaffold,
    round: Count,
) -> tuple[tuple[Blocks, Blocks], Blocks]:
    """How far the blocks and the client's variate moved, and the new variate itself."""
    steps = local.steps_of(client, algorithm.local_steps)
    sizes = tuple(size_of(lr, round, steps) for lr in algorithm.rates())
    correction = tree.sub(c, c_i)

    def step(nu, blocks):
        key = jax.random.fold_in(client.key, nu)
        sample = client.draw(problem.split, algorithm.batch_size, key)
        direction = tree.add(algorithm.field(problem, blocks, sample), correction)
        return tuple(map(_step_back, sizes, direction, blocks))

    most = local.most_steps(algorithm.local_steps)
    moved = tree.sub(client.repeat(steps, step, blocks, most=most), blocks)
    if algorithm.option == "I":
        new = algorithm.field(problem, blocks, client.draw(problem.split, None, client.key))
    else:
        count = jnp.asarray(steps).astype(float)
        lengths = tuple(1 / (size * count) for size in sizes)
        new = tuple(map(_step_back, lengths, moved, tree.sub(c_i, c)))
    return (moved, tree.sub(new, c_i)), new


def _step_back(size, direction: Tree, block: Tree) -> Tree:
    return tree.axpy(-size, direction, block)
