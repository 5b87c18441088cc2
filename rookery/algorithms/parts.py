"""Procedures that algorithms are built from, to be combined freely."""

from rookery.algorithms.adbo.admm import ADMM as ADMM
from rookery.algorithms.afbo.aphe import APHEPaper as APHEPaper
from rookery.algorithms.afbo.aphe import APHERandom as APHERandom
from rookery.algorithms.afbo.aphe import APHESum as APHESum
from rookery.algorithms.afbo.hessians import ActiveHessians as ActiveHessians
from rookery.algorithms.afbo.hessians import LocalHessians as LocalHessians
from rookery.algorithms.afbo.hessians import StaleHessians as StaleHessians
from rookery.algorithms.afbo.running import RunningAdjoint as RunningAdjoint
from rookery.algorithms.aid import FederatedCG as FederatedCG
from rookery.algorithms.comfedl.weighting import NormalisedWeights as NormalisedWeights
from rookery.algorithms.comfedl.weighting import PrintedWeights as PrintedWeights
from rookery.algorithms.comfedl.weighting import ShiftedWeights as ShiftedWeights
from rookery.algorithms.fedex import LocalSetting as LocalSetting
from rookery.algorithms.fedmbo import PHE as PHE
from rookery.algorithms.fedmbo import PHESum as PHESum
from rookery.algorithms.fedmsa.output import LastIterate as LastIterate
from rookery.algorithms.fedmsa.output import RandomIterate as RandomIterate
from rookery.algorithms.fedmsa.warmup import BilevelWarmUp as BilevelWarmUp
from rookery.algorithms.fedmsa.warmup import CompositionWarmUp as CompositionWarmUp
from rookery.algorithms.fednest.fedihgp import FedIHGP as FedIHGP
from rookery.algorithms.fednest.fedihgp import FedIHGPSum as FedIHGPSum
from rookery.algorithms.fednest.fedinn import FedInn as FedInn
from rookery.algorithms.fednest.fedinn import FedInnSGD as FedInnSGD
from rookery.algorithms.fednest.fedout import FedOut as FedOut
from rookery.algorithms.fednest.light import LFedOut as LFedOut
from rookery.algorithms.prometheus.mixing import CompleteGraph as CompleteGraph
from rookery.algorithms.prometheus.mixing import MixingMatrix as MixingMatrix
from rookery.algorithms.prometheus.mixing import RingGraph as RingGraph
from rookery.algorithms.sgda import Alternating as Alternating
from rookery.algorithms.sgda import Simultaneous as Simultaneous
from rookery.algorithms.shared.auto import Curvature as Curvature
from rookery.algorithms.shared.auto import DoG as DoG
from rookery.algorithms.shared.estimators import PAGE as PAGE
from rookery.algorithms.shared.estimators import STORM as STORM
from rookery.algorithms.shared.estimators import MomentumEstimator as MomentumEstimator
from rookery.algorithms.shared.estimators import OptimisticEstimator as OptimisticEstimator
from rookery.algorithms.shared.estimators import PlainEstimator as PlainEstimator
from rookery.algorithms.shared.lipschitz import PowerIteration as PowerIteration
from rookery.algorithms.shared.local import RandomSteps as RandomSteps
from rookery.algorithms.shared.local_adjoint import LocalCG as LocalCG
from rookery.algorithms.shared.local_adjoint import LocalNeumann as LocalNeumann
from rookery.algorithms.shared.local_adjoint import LocalNeumannSum as LocalNeumannSum
from rookery.algorithms.shared.local_solver import GradientSteps as GradientSteps
from rookery.algorithms.shared.local_solver import NewtonSteps as NewtonSteps
from rookery.algorithms.shared.meta_hessian import ExactHessian as ExactHessian
from rookery.algorithms.shared.meta_hessian import FirstOrder as FirstOrder
from rookery.algorithms.shared.meta_hessian import HessianFree as HessianFree
from rookery.algorithms.shared.penalty_view import Growing as Growing
from rookery.algorithms.shared.penalty_view import PenaltyView as PenaltyView
from rookery.algorithms.shared.proximal import proximal_sgd as proximal_sgd
from rookery.algorithms.shared.schedule import ByRound as ByRound
from rookery.algorithms.shared.schedule import Decay as Decay
from rookery.algorithms.shared.schedule import PowerDecay as PowerDecay
from rookery.algorithms.shared.server import FrozenOuter as FrozenOuter
from rookery.algorithms.shared.server import ServerSGD as ServerSGD
from rookery.algorithms.shared.server import ServerStep as ServerStep
from rookery.algorithms.shared.step_rule import Optimiser as Optimiser
from rookery.algorithms.shared.step_rule import PerCall as PerCall
from rookery.algorithms.shared.views import AdjointView as AdjointView
from rookery.algorithms.shared.views import BilevelView as BilevelView
from rookery.algorithms.shared.views import ConditionalView as ConditionalView
from rookery.algorithms.shared.views import MinimaxView as MinimaxView
from rookery.algorithms.shared.views import ProductView as ProductView
from rookery.algorithms.shared.views import SequencesView as SequencesView
from rookery.algorithms.shared.warm import WarmSeries as WarmSeries
from rookery.program.codec import BFloat16 as BFloat16
from rookery.program.codec import RandK as RandK
from rookery.program.codec import StochasticRounding as StochasticRounding
from rookery.program.codec import TopK as TopK

__all__ = [
    "ADMM",
    "PAGE",
    "PHE",
    "STORM",
    "APHEPaper",
    "APHERandom",
    "APHESum",
    "ActiveHessians",
    "AdjointView",
    "Alternating",
    "BFloat16",
    "BilevelView",
    "BilevelWarmUp",
    "ByRound",
    "CompleteGraph",
    "CompositionWarmUp",
    "ConditionalView",
    "Curvature",
    "Decay",
    "DoG",
    "ExactHessian",
    "FedIHGP",
    "FedIHGPSum",
    "FedInn",
    "FedInnSGD",
    "FedOut",
    "FederatedCG",
    "FirstOrder",
    "FrozenOuter",
    "GradientSteps",
    "Growing",
    "HessianFree",
    "LFedOut",
    "LastIterate",
    "LocalCG",
    "LocalHessians",
    "LocalNeumann",
    "LocalNeumannSum",
    "LocalSetting",
    "MinimaxView",
    "MixingMatrix",
    "MomentumEstimator",
    "NewtonSteps",
    "NormalisedWeights",
    "Optimiser",
    "OptimisticEstimator",
    "PHESum",
    "PenaltyView",
    "PerCall",
    "PlainEstimator",
    "PowerDecay",
    "PowerIteration",
    "PrintedWeights",
    "ProductView",
    "RandK",
    "RandomIterate",
    "RandomSteps",
    "RingGraph",
    "RunningAdjoint",
    "SequencesView",
    "ServerSGD",
    "ServerStep",
    "ShiftedWeights",
    "Simultaneous",
    "StaleHessians",
    "StochasticRounding",
    "TopK",
    "WarmSeries",
    "proximal_sgd",
]
