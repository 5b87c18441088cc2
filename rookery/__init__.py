"""Federated nested optimisation: bilevel, minimax, compositional, multi-sequence.

Import it with ``import rookery as rk``.
"""

from importlib.metadata import version as _version

from rookery import algorithms as algorithms
from rookery import check as check
from rookery import models as models
from rookery import program as program
from rookery import remote as remote
from rookery import tasks as tasks
from rookery import tracking as tracking
from rookery import tree as tree
from rookery.algorithms import parts as parts
from rookery.algorithms.adbo import ADBO as ADBO
from rookery.algorithms.adbo import SDBO as SDBO
from rookery.algorithms.afbo import AFBO as AFBO
from rookery.algorithms.afl import AFACD as AFACD
from rookery.algorithms.afl import AFACS as AFACS
from rookery.algorithms.afl import AFLBilevel as AFLBilevel
from rookery.algorithms.agnostic import AgnosticFL as AgnosticFL
from rookery.algorithms.centralised import AID as AID
from rookery.algorithms.centralised import ALSET as ALSET
from rookery.algorithms.centralised import TTSA as TTSA
from rookery.algorithms.centralised import StocBiO as StocBiO
from rookery.algorithms.comfedl import ComFedL as ComFedL
from rookery.algorithms.compositional import NASA as NASA
from rookery.algorithms.compositional import SCGD as SCGD
from rookery.algorithms.compositional import ComposedSGD as ComposedSGD
from rookery.algorithms.drfa import DRFA as DRFA
from rookery.algorithms.fedavg import FedAvg as FedAvg
from rookery.algorithms.fedbuff import FedBuff as FedBuff
from rookery.algorithms.fedmbo import FedMBO as FedMBO
from rookery.algorithms.fedmsa import FedMSA as FedMSA
from rookery.algorithms.fednest.fednest import FedNest as FedNest
from rookery.algorithms.fednest.fednest import FedNestSGD as FedNestSGD
from rookery.algorithms.fednest.light import LFedNest as LFedNest
from rookery.algorithms.fednest.light import LFedNestNonAlt as LFedNestNonAlt
from rookery.algorithms.fednest.light import LFedNestSVRG as LFedNestSVRG
from rookery.algorithms.fedprox import FedProx as FedProx
from rookery.algorithms.gda import GDA as GDA
from rookery.algorithms.gda import AlternatingGDA as AlternatingGDA
from rookery.algorithms.gda import Extragradient as Extragradient
from rookery.algorithms.nested import Nested as Nested
from rookery.algorithms.perfedavg import PerFedAvg as PerFedAvg
from rookery.algorithms.prometheus import Prometheus as Prometheus
from rookery.algorithms.qfedavg import QFedAvg as QFedAvg
from rookery.algorithms.scaffold import Scaffold as Scaffold
from rookery.algorithms.scaffold import ScaffoldS as ScaffoldS
from rookery.algorithms.sgda import FedAvgS as FedAvgS
from rookery.algorithms.stochastic_approximation import SOBA as SOBA
from rookery.algorithms.stochastic_approximation import STSA as STSA
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
from rookery.problem.sample import Rows as Rows
from rookery.problem.single_level import SingleLevel as SingleLevel
from rookery.program import aggregate as aggregate
from rookery.program import availability as availability
from rookery.program import delays as delays
from rookery.program import participation as participation
from rookery.program.algorithm import AbstractAlgorithm as AbstractAlgorithm
from rookery.runner import metrics as metrics
from rookery.runner.history import History as History
from rookery.runner.run_state import Result as Result
from rookery.runner.run_state import Run as Run
from rookery.runner.sweep import run as run
from rookery.runner.sweep import sweep as sweep

__version__ = _version("rookery")
