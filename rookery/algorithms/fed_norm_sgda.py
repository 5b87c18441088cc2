"""Fed-Norm-SGDA: local descent-ascent with a server step, for unequal numbers of local steps.

P. Sharma, R. Panda, G. Joshi. Federated minimax optimization with client heterogeneity. TMLR 2023,
arXiv:2302.04249. Written from its equations as others quote them.

    paper       code                    meaning
    x, y        u, the blocks           minimising and maximising variable
    η_c         outer_lr, inner_lr      step rules of the clients
    γ_s         server_lr               step rules of the server, x first
    τ_i         local_steps
    g_i         total / τ_i             mean of a client's gradients along its steps
    τ_eff       -                       mean of the τ_i

    client      τ_i times  x = x - η f_x,  y = y + η f_y,  both at the old pair
    server      u = u - γ τ_eff (mean of g_i)

The rounds are those of :func:`ShroFBO` on the blocks (x, y) with the maps (f_x, -f_y). Plain sums
weigh a client by its number of steps, and end at the saddle point of another problem.
Cost of a round: 1 exchange, x and y down and up, and a number up.
"""

from rookery.algorithms.simfbo import SimFBO
from rookery.program.algorithm import with_settings_of


@with_settings_of(SimFBO, without=("normalised",))
def FedNormSGDA(**settings) -> SimFBO:
    """Normalised local descent-ascent.

    >>> FedNormSGDA(outer_lr=0.05, inner_lr=0.1, server_lr=0.1, local_steps=(1, 5, 2)).name
    'FedNormSGDA'
    """
    return SimFBO(**settings, normalised=True, label="FedNormSGDA")
