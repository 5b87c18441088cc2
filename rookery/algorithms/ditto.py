"""Ditto: FedAvg, and beside it a model of each client's own that is pulled to the global one.

T. Li, S. Hu, A. Beirami, V. Smith. Ditto: fair and robust federated learning through
personalization. ICML 2021, arXiv:2012.04221.

    paper   code            meaning
    w       w               the global model
    v_k     own             a client's own model
    λ       mu              strength of the pull
    η       lr, own_lr      step rules of the global and of the own model
    s       own_steps       steps of the own model per round
    r       local_steps     steps of the global model per round

    client      w_i = w after r steps on f_i;   v_i = v_i - η (∇f_i(v_i) + λ (v_i - w)), s times,
                with the w that was sent, not with w_i
    server      w = mean of w_i

Cost of a round: that of FedAvg; own models never travel. Departure from the authors' program: it
alternates one step of each on the same batch; here the two runs of steps are apart.
"""

from dataclasses import KW_ONLY

import equinox as eqx
import jax

from rookery import check, tree
from rookery.algorithms.shared import local
from rookery.algorithms.shared.model import gradient_steps
from rookery.algorithms.shared.own_models import AbstractOwnModels
from rookery.algorithms.shared.step_rule import StepRule, step_rule
from rookery.problem.constraints import projected, projection
from rookery.problem.single_level import SingleLevel
from rookery.program.federation import Client
from rookery.types import Count, Tree


class Ditto(AbstractOwnModels):
    """A global model by FedAvg, and own models near it.

    Args:
        lr: step rule of the global model on a client.
        mu: λ; at 0 every client trains alone, besides FedAvg.
        own_lr: step rule of the own model, reset in every round.
        own_steps: s.

    >>> Ditto(lr=0.1, own_lr=0.1, mu=0.5, local_steps=5, own_steps=5).mu
    0.5
    """

    _: KW_ONLY
    own_lr: StepRule = eqx.field(converter=step_rule)
    own_steps: int = 1

    def __check_init__(self):
        check.not_negative("mu", self.mu)
        check.count("own_steps", self.own_steps)

    def train(
        self, client: Client, w: Tree, own: Tree, *, problem: SingleLevel, round: Count
    ) -> tuple[Tree, Tree]:
        """FedAvg's steps of a copy of the global model, and steps of the own model, v."""
        w_i, _ = gradient_steps(client, w, problem=problem, algorithm=self, round=round)

        def gradient(v, key):
            sample = client.draw(problem.split, self.batch_size, key)
            return tree.axpy(self.mu, tree.sub(v, w), problem.gradient(v, sample))

        key = jax.random.fold_in(client.key, 1 << 20)  # no step of the global model has it
        how = {"project": projection(problem, "w"), "round": round}
        v, _ = local.plain_steps(client, gradient, own, self.own_lr, self.own_steps, key, **how)
        return w_i, projected(problem, "w", v)
