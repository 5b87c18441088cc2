"""Communication rounds as the paper counts them (FedNest, table 2).

The ledger counts the exchanges that were made. The paper counts N hops of FedIHGP where algorithm 3
makes N' < N, and no exchange for an estimate of L. With FedIHGPSum and a given L both counts agree.
To draw a curve on the paper's axis, multiply ``history["round"]`` by :func:`paper_rounds`.
"""

from rookery.algorithms.fednest.fedihgp import AbstractIHGP
from rookery.algorithms.fednest.fedinn import FedInn, FedInnSGD
from rookery.algorithms.fednest.fednest import FedNest
from rookery.algorithms.fednest.fedout import FedOut
from rookery.algorithms.fednest.light import LFedNestNonAlt, LFedOut
from rookery.algorithms.nested import Nested
from rookery.algorithms.shared.adjoint import AbstractAdjoint
from rookery.algorithms.shared.levels import TwoLevel
from rookery.algorithms.shared.two_level import AbstractInner
from rookery.problem.composition import Composition
from rookery.problem.minimax import Minimax
from rookery.program.algorithm import AbstractAlgorithm


def paper_rounds(algorithm: AbstractAlgorithm, problem: TwoLevel) -> int:
    """The communication rounds of one round of FedNest or a relative, by the paper's table 2.

    >>> import rookery as rk
    >>> problem = rk.zoo.scalar_bilevel().problem
    >>> ihgp = rk.parts.FedIHGP(terms=5)  # makes 0 to 4 hops, and table 2 counts 5
    >>> paper_rounds(rk.FedNest(outer_lr=0.1, inner_lr=0.1, inner_rounds=2, ihgp=ihgp), problem)
    12
    >>> paper_rounds(rk.LFedNest(outer_lr=0.1, inner_lr=0.1, inner_rounds=2), problem)
    3
    """
    match algorithm:
        case FedNest(inner_rounds=T, adjoint=ihgp):
            return 2 * T + _outer(ihgp, problem)
        case LFedNestNonAlt():
            return 1
        case Nested(inner=inner, outer=FedOut(adjoint=ihgp), inner_rounds=T):
            return _inner(inner) * T + _outer(ihgp, problem)
        case Nested(inner=inner, outer=LFedOut(), inner_rounds=T):
            return _inner(inner) * T + 1
    raise TypeError(f"table 2 of FedNest has no {algorithm.name}.")


def _inner(inner: AbstractInner) -> int:
    match inner:
        case FedInn():
            return 2
        case FedInnSGD():
            return 1
    raise TypeError(f"table 2 of FedNest has no {type(inner).__name__}.")


def _outer(adjoint: AbstractAdjoint, problem: TwoLevel) -> int:
    match problem:
        case Minimax():
            return 2
        case Composition():
            return 3
    if isinstance(adjoint, AbstractIHGP):
        return adjoint.terms + 3
    raise TypeError(f"table 2 of FedNest has no {type(adjoint).__name__}.")
