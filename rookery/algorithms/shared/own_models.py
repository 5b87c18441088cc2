"""What methods with a whole model of each client's own share: the round, and where it is kept."""

import abc
from dataclasses import KW_ONLY
from typing import ClassVar

import equinox as eqx
import jax

from rookery.algorithms.shared.model import AbstractLocalSGD, ModelState, move_to_mean
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.step_rule import is_keeping
from rookery.problem.constraints import projected
from rookery.problem.single_level import SingleLevel
from rookery.program.federation import AbstractFederation, Client
from rookery.program.memory import Memory, check_rule
from rookery.types import Count, Key, Problem, Tree


class AbstractOwnModels(AbstractLocalSGD):
    """A global model, and one of each client's own that never travels.

    The solution is the global model; evaluations on clients use the client's own.

    Args:
        mu: λ, how strongly an own model is pulled to the global one.
    """

    kind: ClassVar[type] = SingleLevel

    _: KW_ONLY
    mu: float = eqx.field(converter=number)

    def __check_init__(self):
        check_rule(self.name, self.clients)
        if is_keeping(self.lr):
            raise ValueError(
                f"lr of {self.name} got keep=True, but its clients keep models, not states of "
                "optimisers. Leave keep out."
            )

    def init(self, problem: Problem, w: Tree) -> ModelState:
        """The given model, and the same for every client."""
        return super().init(problem, w)._replace(own=Memory.of(w))

    def round(
        self, fed: AbstractFederation, problem: SingleLevel, state: ModelState, key: Key
    ) -> ModelState:
        """One exchange: the clients train both models; w moves to the mean of its copies."""
        who, local_key = jax.random.split(key)
        cohort = fed.sample(self.clients, who)
        w, own = fed.broadcast(cohort, state.w), fed.recall(cohort, state.own)  # down  w
        settings = {"problem": problem, "algorithm": self, "round": fed.round}
        w_i, own = fed.map(train_both, w, own, key=local_key, **settings)
        mean = fed.mean(w_i, around=w)  # ------------------------------------- up    w_i
        new, opt = move_to_mean(self.server_lr, mean, state.opt, state.w, fed.round)
        kept = fed.keep(state.own, own)
        return state._replace(w=projected(problem, "w", new), opt=opt, own=kept)

    @abc.abstractmethod
    def train(
        self, client: Client, w: Tree, own: Tree, *, problem: SingleLevel, round: Count
    ) -> tuple[Tree, Tree]:
        """The client's copy of the global model and its own model, after its steps."""

    def own_leaves(self, state: ModelState) -> tuple[Tree]:
        """The clients' own models, a row each."""
        return (state.own.rows,)

    def client_solution(self, state: ModelState, client: int) -> tuple[Tree]:
        """(w,), the own model of one client."""
        return (jax.tree.map(lambda rows: rows[client], state.own.rows),)


def train_both(
    client: Client,
    w: Tree,
    own: Tree,
    *,
    problem: SingleLevel,
    algorithm: AbstractOwnModels,
    round: Count,
) -> tuple[Tree, Tree]:
    """What a client does when the server asks it to train."""
    return algorithm.train(client, w, own, problem=problem, round=round)
