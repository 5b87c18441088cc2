"""What methods for inner variables of the clients' own share: the round, and where they are kept.

    down    x                                       (and what is averaged beside it)
    client  takes steps of x_i and of its own y_i, which stays in its memory
    up      x_i                                     (and the same)
    server  x = mean of x_i, or a step of its own rule towards it

A client that has not taken part yet has the y that the run started with.
"""

import abc
from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.algorithms.shared import local
from rookery.algorithms.shared.model import check_server_rule, move_to_mean
from rookery.algorithms.shared.step_rule import StepRule, check_step_rule, first_opt, step_rule
from rookery.algorithms.shared.step_rule import is_keeping as keeps
from rookery.problem.bilevel import PersonalBilevel
from rookery.problem.constraints import projected
from rookery.program.algorithm import SampledAlgorithm, check_kind
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory, check_rule
from rookery.types import Count, Key, Tree


class PersonalState(NamedTuple):
    """The shared variable, what clients keep (y_i first), and the state of the server's rule.

    ``beside`` is averaged with x, such as an estimate of its direction; empty in most methods.
    """

    x: Tree
    own: Memory
    beside: Tree = ()
    opt: Tree = ()


class AbstractPersonal(SampledAlgorithm):
    """A shared x, and for each client a y of its own that never travels.

    The solution is x and the mean of the clients' own y, all counting alike; evaluations on clients
    use the client's own.

    Args:
        outer_lr: step rule of x on a client.
        local_steps: steps of x between two averages, one number or one per client.
        server_lr: step rule of the server, which takes  x - (mean of x_i)  for a gradient; None
            makes the mean the new x.
    """

    projects: ClassVar[bool] = True

    _: KW_ONLY
    outer_lr: StepRule = eqx.field(converter=step_rule)
    local_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    server_lr: StepRule | None = eqx.field(converter=step_rule, default=None)

    def __check_init__(self):
        check_step_rule("outer_lr", self.outer_lr, "local")
        local.check_local_steps("local_steps", self.local_steps)
        check_server_rule(self.server_lr)
        check_rule(self.name, self.clients)
        for name, value in vars(self).items():
            rules = value if isinstance(value, tuple) else (value,)
            if any(keeps(rule) for rule in rules):
                raise ValueError(
                    f"{name} of {self.name} got keep=True, but its clients keep inner variables, "
                    "not states of optimisers. Leave keep out."
                )

    def check(self, problem: PersonalBilevel, n_clients: int) -> None:
        """Raise unless inner variables are the clients' own and the settings fit the clients."""
        check_kind(self, problem, PersonalBilevel)
        local.check_local_steps("local_steps", self.local_steps, n_clients)
        self.clients.check(n_clients)

    def init(self, problem: PersonalBilevel, x: Tree, y: Tree) -> PersonalState:
        """The given x, and the given y for every client."""
        opt = first_opt(self.server_lr, x)
        return PersonalState(x, Memory.of(self.first_own(x, y)), self.first_beside(x), opt)

    def first_own(self, x: Tree, y: Tree) -> tuple[Tree, ...]:
        """What a client keeps before its first round, y first."""
        return (y,)

    def first_beside(self, x: Tree) -> Tree:
        """What is averaged beside x; most methods have nothing."""
        return ()

    def round(
        self, fed: AbstractFederation, problem: PersonalBilevel, state: PersonalState, key: Key
    ) -> PersonalState:
        """One exchange."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        sent = fed.broadcast(cohort, (state.x, state.beside))  # ------------- down  x
        own = fed.recall(cohort, state.own)
        settings = {"problem": problem, "algorithm": self, "round": fed.round}
        up, own = fed.map(train_own, sent, own, key=local_key, **settings)
        with fed.outer():
            around = next(iter(sent)), None
            mean, beside = fed.mean(up, around=around)  # -------------------- up    x_i
        x, opt = move_to_mean(self.server_lr, mean, state.opt, state.x, fed.round)
        return PersonalState(projected(problem, "x", x), fed.keep(state.own, own), beside, opt)

    @abc.abstractmethod
    def train(
        self,
        client: Client,
        x: Tree,
        beside: Tree,
        own: Any,  # the tuple of first_own
        *,
        problem: PersonalBilevel,
        round: Count,
    ) -> tuple[tuple[Tree, Tree], tuple[Tree, ...]]:
        """What a client does: x_i and what is averaged beside it, and what it keeps."""

    def solution(self, state: PersonalState) -> tuple[Tree, Tree]:
        """x, and the mean of the clients' own y."""
        return state.x, jax.tree.map(lambda rows: jnp.mean(rows, axis=0), state.own.rows[0])

    def own_leaves(self, state: PersonalState) -> tuple[Tree, Tree]:
        """The clients' own y, a row each."""
        return jax.tree.map(lambda _: None, state.x), state.own.rows[0]

    def client_solution(self, state: PersonalState, client: int) -> tuple[Tree, Tree]:
        """x, and the y of one client."""
        return state.x, jax.tree.map(lambda rows: rows[client], state.own.rows[0])


def train_own(
    client: Client,
    sent: tuple[Tree, Tree],
    own: tuple[Tree, ...],
    *,
    problem: PersonalBilevel,
    algorithm: AbstractPersonal,
    round: Count,
) -> tuple[tuple[Tree, Tree], tuple[Tree, ...]]:
    """What a client does when the server asks it to train."""
    return algorithm.train(client, *sent, own, problem=problem, round=round)
