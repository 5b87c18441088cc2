"""The language that algorithms are written in, and what its words cost.

What the author of an algorithm needs is here. Models of delay, of availability, participation rules
and aggregation rules have modules of their own.
"""

from rookery.program.algorithm import AbstractAlgorithm as AbstractAlgorithm
from rookery.program.algorithm import SampledAlgorithm as SampledAlgorithm
from rookery.program.federation import AbstractFederation as AbstractFederation
from rookery.program.federation import Client as Client
from rookery.program.federation import Placed as Placed
from rookery.program.ledger import Ledger as Ledger
from rookery.program.memory import Memory as Memory
from rookery.program.memory import PerClient as PerClient
from rookery.program.memory import Probabilities as Probabilities
from rookery.program.participation import Cohort as Cohort
from rookery.program.polling import InFlight as InFlight
from rookery.program.polling import PollResult as PollResult
from rookery.program.polling import PollRules as PollRules

__all__ = [
    "AbstractAlgorithm",
    "AbstractFederation",
    "Client",
    "Cohort",
    "InFlight",
    "Ledger",
    "Memory",
    "PerClient",
    "Placed",
    "PollResult",
    "PollRules",
    "Probabilities",
    "SampledAlgorithm",
]
