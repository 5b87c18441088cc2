"""FedRep: a shared body under a head of each client's own.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. Exploiting shared representations for
personalized federated learning. ICML 2021, arXiv:2102.07089. Reconstructed from descriptions by
others; the full text was not at hand.

    paper   code            meaning
    φ, B    x               the body
    h_i     y, own          a client's own head
    τ       inner_steps     steps of the head per round, at the body that was sent
    α       inner_lr        their step rule
    α       outer_lr        step rule of the body
    -       local_steps     steps of the body, after those of the head

    client      τ times  y_i = y_i - α g_y(x, y_i);   then  x_i = x_i - α f_x(x_i, y_i)
    server      x = mean of x_i

The paper has one loss, f = g. Then f_y vanishes at the head's minimum, and f_x is the whole
gradient of the body. On other problems (:class:`PersonalBilevel` with different losses, such as
validation above training rows) the part through y_i*(x) is left out: it ends where the mean of f_x
is zero. :class:`IMAML` and :class:`FedBiOLocal` have that part.

Cost of a round: 1 exchange, the body down and up; heads never travel.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check
from rookery.algorithms.shared import local
from rookery.algorithms.shared.local_solver import GradientSteps
from rookery.algorithms.shared.personal import AbstractPersonal
from rookery.algorithms.shared.step_rule import StepRule, check_step_rule, step_rule
from rookery.algorithms.shared.system import LocalSystem
from rookery.problem.constraints import projected, projection


class FedRep(AbstractPersonal):
    """Steps of the own head, then steps of the shared body.

    Args:
        inner_lr: step rule of the head.
        inner_steps: τ, steps of the head per round.

    >>> FedRep(outer_lr=0.05, inner_lr=0.1, inner_steps=10, clients=10).local_steps
    1
    """

    _: KW_ONLY
    inner_lr: StepRule = eqx.field(converter=step_rule)
    inner_steps: int = 5

    def __check_init__(self):
        check_step_rule("inner_lr", self.inner_lr, "local")
        check.count("inner_steps", self.inner_steps)

    def train(self, client, x, beside, own, *, problem, round):
        """The body and the head after their steps."""
        head_key, body_key = jax.random.split(client.key)
        at = LocalSystem(client, problem, projected(problem, "x", x), own[0], self.batch_size)
        y = GradientSteps(self.inner_lr, steps=self.inner_steps).solve(at, head_key, round)

        def gradient(x, key):
            sample = client.draw(problem.outer_split, self.batch_size, key)
            return problem.outer_grad_x(x, y, sample)

        how = {"project": projection(problem, "x"), "round": round}
        steps = self.outer_lr, self.local_steps
        x_i, _ = local.plain_steps(client, gradient, at.x, *steps, body_key, **how)
        return (x_i, ()), (y,)
