"""The language that algorithms are written in, and what its words cost."""

from rookery.program.availability import AlwaysOn as AlwaysOn
from rookery.program.availability import BernoulliOn as BernoulliOn
from rookery.program.availability import DiurnalOn as DiurnalOn
from rookery.program.availability import TraceOn as TraceOn
from rookery.program.clock import Clock as Clock
from rookery.program.clock import ConstantDelay as ConstantDelay
from rookery.program.clock import LogNormalDelay as LogNormalDelay
from rookery.program.clock import NoDelay as NoDelay
from rookery.program.clock import ParetoDelay as ParetoDelay
from rookery.program.clock import Stragglers as Stragglers
from rookery.program.clock import UniformDelay as UniformDelay
from rookery.program.cohort import Everyone as Everyone
from rookery.program.cohort import Fixed as Fixed
from rookery.program.cohort import Uniform as Uniform
from rookery.program.cohort import Weighted as Weighted
from rookery.program.cohort import WithReplacement as WithReplacement

__all__ = [
    "AlwaysOn",
    "BernoulliOn",
    "Clock",
    "ConstantDelay",
    "DiurnalOn",
    "Everyone",
    "Fixed",
    "LogNormalDelay",
    "NoDelay",
    "ParetoDelay",
    "Stragglers",
    "TraceOn",
    "Uniform",
    "UniformDelay",
    "Weighted",
    "WithReplacement",
]
