"""AFL on bilevel problems: anarchic federated learning at both levels, each client on its own.

H. Yang, X. Zhang, P. Khanduri, J. Liu. Anarchic federated learning. ICML 2022.

    paper   code                        meaning
    w       y, and x                    what is learnt; here twice, the inner and the outer variable
    η       inner_lr, outer_lr          step sizes of the server
    K_i     inner_steps                 local steps of a job, given or random
    η_L     local_step                  their size
    G_i     inner, outer (results)      a job's mean gradient; the server keeps the latest of all

The method is AFA-CS: the server keeps the latest result of every client and steps along their mean.
Anarchic papers compare with it on bilevel problems and do not say how. Here it learns y along inner
gradients and x along every client's own hypergradient  f_x - g_xy [g_yy]^{-1} f_y,  by a Neumann
series on the client. The mean of these is not the hypergradient of the means, so it comes to rest
beside the solution where clients differ.

Cost of a round: K + 1 exchanges. It is :class:`AFBO` with :class:`LocalHessians`.
"""

import equinox as eqx

from rookery._types import Key, Tree
from rookery.algorithms.afbo import AFBO, AFBOState
from rookery.algorithms.parts import local
from rookery.algorithms.parts.aphe import AbstractAPHE, APHESum
from rookery.algorithms.parts.hessians import LocalHessians
from rookery.algorithms.parts.lipschitz import REMEDY
from rookery.problem.bilevel import Bilevel
from rookery.program.algorithm import AbstractAlgorithm
from rookery.program.federation import AbstractFederation


class AFLBilevel(AbstractAlgorithm):
    """AFA-CS on y, and on x along the clients' own hypergradients.

    Args:
        outer_lr: step size of x.
        inner_lr: step size of y.
        inner_rounds: K, inner steps of the server per round.
        series: how a client estimates its own adjoint, as in :class:`AFBO`.
        inner_steps: K_i, one number, one per client, or :class:`Between` two, drawn for each job.
        local_step: step size of the local steps; None is ``inner_lr``.
        wait_for: how many results the server waits for at least; None is half of the clients.
        first_wait_for: the same before its first steps; None is everyone.
        inner_staleness: the largest of an inner result, in inner steps of the server; None is any.
        outer_staleness: the largest of an outer result, in rounds; None is any.
        batch_size: rows per evaluation on a client; None is all.
    """

    outer_lr: float = eqx.field(converter=local.number)
    inner_lr: float = eqx.field(converter=local.number)
    inner_rounds: int = 1
    series: AbstractAPHE = eqx.field(default_factory=APHESum)
    inner_steps: local.LocalSteps = eqx.field(converter=local.local_steps, default=1)
    local_step: float | None = eqx.field(converter=local.number, default=None)
    wait_for: int | None = None
    first_wait_for: int | None = None
    inner_staleness: int | None = None
    outer_staleness: int | None = None
    batch_size: int | None = None

    def parts(self) -> AFBO:
        """AFBO whose clients use their own Hessians."""
        return AFBO(
            outer_lr=self.outer_lr,
            inner_lr=self.inner_lr,
            inner_rounds=self.inner_rounds,
            aphe=self.series,
            hessians=LocalHessians(),
            inner_steps=self.inner_steps,
            local_step=self.local_step,
            wait_for=self.wait_for,
            first_wait_for=self.first_wait_for,
            inner_staleness=self.inner_staleness,
            outer_staleness=self.outer_staleness,
            batch_size=self.batch_size,
        )

    def __check_init__(self):
        self.parts()  # which checks what it is given

    def check(self, problem: Bilevel, n_clients: int) -> None:
        """Raise unless the problem is bilevel and there are as many clients as are waited for."""
        self.parts().check(problem, n_clients)

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> AFBOState:
        """The given iterates; no result has been delivered, no job begun."""
        return self.parts().init(problem, x, y)

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: AFBOState, key: Key
    ) -> AFBOState:
        """K inner steps, then an outer one."""
        return self.parts().round(fed, problem, state, key)

    def solution(self, state: AFBOState) -> tuple[Tree, Tree]:
        """(x, y)."""
        return state.x, state.y

    def remedy(self) -> str:
        """A smaller step, or a larger L."""
        return REMEDY
