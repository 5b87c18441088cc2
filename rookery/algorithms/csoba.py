"""C-SOBA, CM-SOBA and EF-SOBA: SOBA whose clients send compressed directions.

Y. He, J. Hu, X. Huang, S. Lu, B. Wang, K. Yuan. Distributed bilevel optimization with communication
compression. ICML 2024, arXiv:2405.18858. Reconstructed from its abstract; error feedback has the
form of EF21 (P. Richtárik, I. Sokolov, I. Fatkhullin, NeurIPS 2021, arXiv:2106.05203).

    paper           code                meaning
    x, y, z         x, y, v             outer and inner variable, adjoint: g_yy v = f_y
    D_i             d_i                 a client's directions of all three
    C               codec               compressor (:mod:`rookery.program.codec`)
    α, β, γ         outer_lr, inner_lr  step rules
    δ               momentum            the server keeps this much of its direction (CM-SOBA)
    m_i             g_i                 what the server knows of d_i (EF-SOBA)

    C-SOBA      up C(d_i);          d = mean C(d_i)
    CM-SOBA     up C(d_i);          d = δ d + (1 - δ) mean C(d_i)
    EF-SOBA     up C(d_i - g_i);    g_i = g_i + C(d_i - g_i) on both sides,  d = mean g_i
    then        (x, y, v) = (x, y, v) - step d

An unbiased compressor turns heterogeneity into noise: where clients differ, d_i is not small at the
solution, and C-SOBA keeps a floor that falls with the step. With a biased one (:class:`TopK`) it
ends elsewhere. EF-SOBA ends at the solution with any of them. With sampled clients its d is the
mean of what all clients sent last.

Cost of a round: 1 exchange, all three variables down, one message of the codec's size up.
"""

from dataclasses import KW_ONLY
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery import check, tree
from rookery.algorithms.shared.block_steps import AbstractBilevelSteps
from rookery.algorithms.shared.compression import Feedback, mean_of_encoded
from rookery.algorithms.shared.schedule import number
from rookery.algorithms.shared.views import Blocks
from rookery.algorithms.soba import directions
from rookery.problem.bilevel import Bilevel
from rookery.problem.constraints import projected
from rookery.program.algorithm import with_settings_of
from rookery.program.codec import AbstractCodec
from rookery.program.federation import AbstractFederation
from rookery.program.memory import Memory, check_rule
from rookery.types import Key, Tree


class CSOBAState(NamedTuple):
    """The iterates, the server's direction, what it knows of each client's, and rules' states."""

    x: Tree
    y: Tree
    v: Tree
    d: Blocks
    own: Tree
    opts: tuple[Tree, ...]


class CSOBA(AbstractBilevelSteps):
    """SOBA with compressed directions.

    Args:
        outer_lr: step rule of x.
        inner_lr: of y and v, or a tuple with one each.
        codec: the compressor.
        momentum: δ, at least 0 and below 1.
        error_feedback: whether clients send differences from what the server knows (EF-SOBA).

    >>> import rookery as rk
    >>> CSOBA(outer_lr=0.05, inner_lr=0.1, codec=rk.parts.StochasticRounding(4)).codec.bits
    4
    """

    is_followed: ClassVar[bool] = False

    _: KW_ONLY
    codec: AbstractCodec
    momentum: float = eqx.field(converter=number, default=0.0)
    error_feedback: bool = False

    def __check_init__(self):
        check.decay("momentum", self.momentum)
        if self.error_feedback:
            check_rule("error_feedback=True", self.clients)
            if self.momentum != 0:
                raise ValueError(
                    f"CSOBA got momentum={self.momentum} and error_feedback=True, whose direction "
                    "is a mean of what was sent before already. Leave out one of the two."
                )

    def init(self, problem: Bilevel, x: Tree, y: Tree) -> CSOBAState:
        """The given variables, and v = 0; the server knows no direction."""
        blocks = x, y, tree.zeros_like(y)
        zero = tree.zeros_like(blocks)
        own = Memory.of(zero) if self.error_feedback else ()
        return CSOBAState(*blocks, zero, own, self.first_opts(problem, blocks))

    def round(
        self, fed: AbstractFederation, problem: Bilevel, state: CSOBAState, key: Key
    ) -> CSOBAState:
        """One exchange, and a step of all three variables."""
        blocks = state.x, state.y, state.v
        known = Feedback(state.d, state.own) if self.error_feedback else ()
        who, sample_key = jax.random.split(key)
        at = fed.broadcast(fed.sample(self.clients, who), blocks)  # -------- down  x, y, v
        settings = {"problem": problem, "batch_size": self.batch_size}
        d_i = fed.map(directions, at, key=sample_key, **settings)
        how = {"codec": self.codec, "like": blocks, "known": known}
        with fed.outer():
            d, known = mean_of_encoded(fed, d_i, key=sample_key, salt=2, **how)  # up  C(..)
        if not isinstance(known, Feedback):
            first = jnp.asarray(fed.round) == 0
            keep = jnp.where(first, jnp.zeros_like(self.momentum), self.momentum)
            d = tree.add(tree.scale(keep, state.d), tree.scale(1 - keep, d))
        opts = self.measured(fed, problem, state.opts, blocks, key)
        (x, y, v), opts = self.step(d, opts, blocks, fed.round)
        own = known.own if isinstance(known, Feedback) else ()
        return CSOBAState(projected(problem, "x", x), y, v, d, own, opts)


@with_settings_of(CSOBA, without=("error_feedback",))
def CMSOBA(**settings) -> CSOBA:
    """C-SOBA with a moving average of the direction at the server: ``momentum``, 0.9 if not given.

    >>> import rookery as rk
    >>> CMSOBA(outer_lr=0.05, inner_lr=0.1, codec=rk.parts.RandK(0.25)).momentum
    0.9
    """
    return CSOBA(**{"momentum": 0.9, **settings}, label="CMSOBA")


@with_settings_of(CSOBA, without=("error_feedback", "momentum"))
def EFSOBA(**settings) -> CSOBA:
    """SOBA with error feedback: exact with any codec, also with biased ones.

    >>> import rookery as rk
    >>> EFSOBA(outer_lr=0.05, inner_lr=0.1, codec=rk.parts.TopK(0.1)).error_feedback
    True
    """
    return CSOBA(**settings, error_feedback=True, label="EFSOBA")
