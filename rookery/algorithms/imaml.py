"""Implicit gradients of clients' own inner problems, each solved by the client (iMAML).

A. Rajeswaran, C. Finn, S. Kakade, S. Levine. Meta-learning with implicit gradients. NeurIPS 2019,
arXiv:1909.04630. The method for tasks on one machine; here a task is a client, as in federated
meta-learning. Reconstructed from the method's published idea, and not compared with the authors'
pseudo-code.

    paper       code            meaning
    θ           x               the shared variable
    φ_i         y, own          a client's own variable, at the minimum of its inner loss
    g_i         v               the adjoint:  g_yy v = f_y  of the client
    η           outer_lr        step of x
    -           inner           how a client comes to its φ_i
    CG          adjoint         how it solves for v

    client      local_steps times  y_i = argmin g_i(x_i, .),  v_i by conjugate gradients,
                x_i = x_i - η (f_x - g_xy v_i)
    server      x = mean of x_i

The paper's inner loss is  L_i(φ) + λ/2 |φ - θ|²;  then g_xy = -λ I and the direction is
(I + L_i''/λ)^{-1} f_y.  Any :class:`PersonalBilevel` will do here. With exact solves one local step
is gradient descent on the mean of f_i(x, y_i*(x)); more of them drift where clients differ.

Cost of a round: 1 exchange, x down, x_i up; y_i and v_i never travel. Departure from the paper: a
client's solver starts where its last one ended, not at θ.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery.algorithms.shared import local
from rookery.algorithms.shared.adjoint import own_piece
from rookery.algorithms.shared.local_adjoint import AbstractLocalAdjoint, LocalCG, own_adjoint
from rookery.algorithms.shared.local_solver import AbstractLocalSolver, NewtonSteps
from rookery.algorithms.shared.personal import AbstractPersonal
from rookery.algorithms.shared.step_rule import first_opt, move
from rookery.algorithms.shared.system import LocalSystem
from rookery.problem.constraints import projected


class IMAML(AbstractPersonal):
    """Steps along the clients' own implicit gradients.

    Args:
        inner: how a client solves its inner problem: :class:`NewtonSteps`, :class:`GradientSteps`.
        adjoint: how it solves for v: :class:`LocalCG`, :class:`LocalNeumannSum`.

    >>> import rookery as rk
    >>> IMAML(outer_lr=0.05, inner=rk.parts.GradientSteps(0.1, steps=5)).adjoint.iterations
    10
    """

    _: KW_ONLY
    inner: AbstractLocalSolver = eqx.field(default_factory=NewtonSteps)
    adjoint: AbstractLocalAdjoint = eqx.field(default_factory=LocalCG)

    def train(self, client, x, beside, own, *, problem, round):
        """x_i and y_i after the local steps."""
        R = local.steps_of(client, self.local_steps)

        def step(r, carry):
            x_i, y, opt = carry
            x_i = projected(problem, "x", x_i)
            keys = jax.random.split(jax.random.fold_in(client.key, r), 4)
            at = LocalSystem(client, problem, x_i, y, self.batch_size)
            at = at.at_inner(self.inner.solve(at, keys[0], round))
            v = own_adjoint(at, self.adjoint, keys[1])(x_i, keys[2])
            h = own_piece(at, v, keys[3])
            x_i, opt = move(self.outer_lr, h, opt, x_i, round, R)
            return x_i, at.y, opt

        (y,) = own
        first, most = (x, y, first_opt(self.outer_lr, x)), local.most_steps(self.local_steps)
        x_i, y, _ = client.repeat(R, step, first, most=most)
        return (x_i, ()), (y,)
