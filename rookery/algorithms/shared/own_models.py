"""What methods with a whole model of each client's own share: where it is kept and evaluated."""

import jax

from rookery.algorithms.shared.model import AbstractLocalSGD, ModelState
from rookery.algorithms.shared.step_rule import is_keeping
from rookery.program.memory import Memory, check_rule
from rookery.types import Problem, Tree


class AbstractOwnModels(AbstractLocalSGD):
    """A global model, and one of each client's own that never travels.

    The solution is the global model; evaluations on clients use the client's own.
    """

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

    def own_leaves(self, state: ModelState) -> tuple[Tree]:
        """The clients' own models, a row each."""
        return (state.own.rows,)

    def client_solution(self, state: ModelState, client: int) -> tuple[Tree]:
        """(w,), the own model of one client."""
        return (jax.tree.map(lambda rows: rows[client], state.own.rows),)
