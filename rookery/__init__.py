"""Federated nested optimisation: bilevel, minimax, compositional, multi-sequence.

Import it with ``import rookery as rk``.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING

from rookery import algorithms as _algorithms
from rookery.lazy import names_of

if TYPE_CHECKING:
    from rookery import models as models
    from rookery import program as program
    from rookery import remote as remote
    from rookery import tasks as tasks
    from rookery import tracking as tracking
    from rookery.algorithms import ADBO as ADBO
    from rookery.algorithms import AFACD as AFACD
    from rookery.algorithms import AFACS as AFACS
    from rookery.algorithms import AFBO as AFBO
    from rookery.algorithms import AID as AID
    from rookery.algorithms import ALSET as ALSET
    from rookery.algorithms import DRFA as DRFA
    from rookery.algorithms import GDA as GDA
    from rookery.algorithms import NASA as NASA
    from rookery.algorithms import SCGD as SCGD
    from rookery.algorithms import SDBO as SDBO
    from rookery.algorithms import SOBA as SOBA
    from rookery.algorithms import STSA as STSA
    from rookery.algorithms import TTSA as TTSA
    from rookery.algorithms import AFLBilevel as AFLBilevel
    from rookery.algorithms import AgnosticFL as AgnosticFL
    from rookery.algorithms import AlternatingGDA as AlternatingGDA
    from rookery.algorithms import ComFedL as ComFedL
    from rookery.algorithms import ComposedSGD as ComposedSGD
    from rookery.algorithms import Extragradient as Extragradient
    from rookery.algorithms import FedAvg as FedAvg
    from rookery.algorithms import FedAvgS as FedAvgS
    from rookery.algorithms import FedBuff as FedBuff
    from rookery.algorithms import FedMBO as FedMBO
    from rookery.algorithms import FedMSA as FedMSA
    from rookery.algorithms import FedNest as FedNest
    from rookery.algorithms import FedNestSGD as FedNestSGD
    from rookery.algorithms import FedProx as FedProx
    from rookery.algorithms import LFedNest as LFedNest
    from rookery.algorithms import LFedNestNonAlt as LFedNestNonAlt
    from rookery.algorithms import LFedNestSVRG as LFedNestSVRG
    from rookery.algorithms import Nested as Nested
    from rookery.algorithms import PerFedAvg as PerFedAvg
    from rookery.algorithms import Prometheus as Prometheus
    from rookery.algorithms import QFedAvg as QFedAvg
    from rookery.algorithms import Scaffold as Scaffold
    from rookery.algorithms import ScaffoldS as ScaffoldS
    from rookery.algorithms import StocBiO as StocBiO
    from rookery.algorithms import parts as parts
    from rookery.citation import cite as cite
    from rookery.clients import datasets as datasets
    from rookery.clients import partition as partition
    from rookery.clients.population import Population as Population
    from rookery.engines import Compiled as Compiled
    from rookery.engines import Eager as Eager
    from rookery.problem import zoo as zoo
    from rookery.problem.bilevel import Bilevel as Bilevel
    from rookery.problem.composition import Composition as Composition
    from rookery.problem.composition import LocalComposition as LocalComposition
    from rookery.problem.meta import Meta as Meta
    from rookery.problem.minimax import Minimax as Minimax
    from rookery.problem.multisequence import MultiSequence as MultiSequence
    from rookery.problem.single_level import SingleLevel as SingleLevel
    from rookery.program import aggregate as aggregate
    from rookery.program import availability as availability
    from rookery.program import delays as delays
    from rookery.program import participation as participation
    from rookery.program.algorithm import AbstractAlgorithm as AbstractAlgorithm
    from rookery.runner import metrics as metrics
    from rookery.runner import stop as stop
    from rookery.runner.run_state import Run as Run
    from rookery.runner.solution_file import load_solution as load_solution
    from rookery.runner.sweep import run as run
    from rookery.runner.sweep import sweep as sweep
    from rookery.runner.tune import tune as tune
else:
    __getattr__ = names_of(__name__)

__all__ = [
    "AbstractAlgorithm",
    "Bilevel",
    "Compiled",
    "Composition",
    "Eager",
    "LocalComposition",
    "Meta",
    "Minimax",
    "MultiSequence",
    "Population",
    "Run",
    "SingleLevel",
    "aggregate",
    "availability",
    "cite",
    "datasets",
    "delays",
    "load_solution",
    "metrics",
    "models",
    "participation",
    "partition",
    "parts",
    "program",
    "remote",
    "run",
    "stop",
    "sweep",
    "tasks",
    "tracking",
    "tune",
    "zoo",
]
__all__ += _algorithms.__all__
__version__ = _version("rookery")
