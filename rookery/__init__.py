"""Federated nested optimisation: bilevel, minimax, compositional, multi-sequence.

Import it with ``import rookery as rk``.
"""

from rookery import algorithms as algorithms
from rookery import tasks as tasks
from rookery.algorithms.fednest import FedNest as FedNest
from rookery.algorithms.parts import FedIHGP as FedIHGP
from rookery.algorithms.parts import FedIHGPSum as FedIHGPSum
from rookery.algorithms.parts import PerCall as PerCall
from rookery.algorithms.parts import PowerIteration as PowerIteration
from rookery.clients import datasets as datasets
from rookery.clients import partition as partition
from rookery.clients.population import Population as Population
from rookery.engines import Compiled as Compiled
from rookery.engines import Eager as Eager
from rookery.problem import zoo as zoo
from rookery.problem.bilevel import Bilevel as Bilevel
from rookery.problem.composition import Composition as Composition
from rookery.problem.composition import LocalComposition as LocalComposition
from rookery.problem.minimax import Minimax as Minimax
from rookery.problem.multisequence import MultiSequence as MultiSequence
from rookery.problem.sample import Rows as Rows
from rookery.program import Clock as Clock
from rookery.program import ConstantDelay as ConstantDelay
from rookery.program import Everyone as Everyone
from rookery.program import Fixed as Fixed
from rookery.program import LogNormalDelay as LogNormalDelay
from rookery.program import NoDelay as NoDelay
from rookery.program import ParetoDelay as ParetoDelay
from rookery.program import Stragglers as Stragglers
from rookery.program import Uniform as Uniform
from rookery.program import UniformDelay as UniformDelay
from rookery.program import Weighted as Weighted
from rookery.program import WithReplacement as WithReplacement
from rookery.program.aggregate import Aggregate as Aggregate
from rookery.program.aggregate import Mean as Mean
from rookery.program.algorithm import AbstractAlgorithm as AbstractAlgorithm
from rookery.program.federation import AbstractFederation as AbstractFederation
from rookery.program.federation import Client as Client
from rookery.program.ledger import Ledger as Ledger
from rookery.run.evaluate import OfSolution as OfSolution
from rookery.run.evaluate import OnClients as OnClients
from rookery.run.evaluate import OnServer as OnServer
from rookery.run.history import History as History
from rookery.run.lanes import Job as Job
from rookery.run.lanes import Result as Result
from rookery.run.loop import run as run
from rookery.run.loop import sweep as sweep
