"""The language that algorithms are written in, and what its words cost."""

from rookery.program.availability import AlwaysOn as AlwaysOn
from rookery.program.availability import BernoulliOn as BernoulliOn
from rookery.program.availability import DiurnalOn as DiurnalOn
from rookery.program.availability import TraceOn as TraceOn
from rookery.program.delays import Clock as Clock
from rookery.program.delays import ConstantDelay as ConstantDelay
from rookery.program.delays import LogNormalDelay as LogNormalDelay
from rookery.program.delays import NoDelay as NoDelay
from rookery.program.delays import ParetoDelay as ParetoDelay
from rookery.program.delays import Stragglers as Stragglers
from rookery.program.delays import UniformDelay as UniformDelay
from rookery.program.federation import AbstractFederation as AbstractFederation
from rookery.program.federation import Client as Client
from rookery.program.ledger import Ledger as Ledger
from rookery.program.memory import Memory as Memory
from rookery.program.memory import PerClient as PerClient
from rookery.program.memory import Probabilities as Probabilities
from rookery.program.participation import Everyone as Everyone
from rookery.program.participation import Fixed as Fixed
from rookery.program.participation import Proportional as Proportional
from rookery.program.participation import Uniform as Uniform
from rookery.program.participation import Weighted as Weighted
from rookery.program.participation import WithReplacement as WithReplacement
from rookery.program.polling import InFlight as InFlight
from rookery.program.polling import PollResult as PollResult
from rookery.program.polling import PollRules as PollRules

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
    "Proportional",
    "Stragglers",
    "TraceOn",
    "Uniform",
    "UniformDelay",
    "Weighted",
    "WithReplacement",
]
