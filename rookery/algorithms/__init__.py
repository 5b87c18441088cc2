"""One paper, one file."""

from typing import TYPE_CHECKING

from rookery.lazy import names_of

if TYPE_CHECKING:
    from rookery.algorithms import parts as parts
    from rookery.algorithms.adbo.adbo import ADBO as ADBO
    from rookery.algorithms.adbo.adbo import SDBO as SDBO
    from rookery.algorithms.afbo.afbo import AFBO as AFBO
    from rookery.algorithms.afl import AFACD as AFACD
    from rookery.algorithms.afl import AFACS as AFACS
    from rookery.algorithms.afl import AFLBilevel as AFLBilevel
    from rookery.algorithms.aggitd import AggITD as AggITD
    from rookery.algorithms.agnostic import AgnosticFL as AgnosticFL
    from rookery.algorithms.aid import AID as AID
    from rookery.algorithms.alset import ALSET as ALSET
    from rookery.algorithms.alternating_gda import AlternatingGDA as AlternatingGDA
    from rookery.algorithms.bome import BOME as BOME
    from rookery.algorithms.brfedbi import BRFedBi as BRFedBi
    from rookery.algorithms.brfedbi import BRFedBiM as BRFedBiM
    from rookery.algorithms.brfedbi import BRFedBiP as BRFedBiP
    from rookery.algorithms.codasca import CODASCA as CODASCA
    from rookery.algorithms.comfedl.comfedl import ComFedL as ComFedL
    from rookery.algorithms.composed_sgd import ComposedSGD as ComposedSGD
    from rookery.algorithms.csoba import CMSOBA as CMSOBA
    from rookery.algorithms.csoba import CSOBA as CSOBA
    from rookery.algorithms.csoba import EFSOBA as EFSOBA
    from rookery.algorithms.ditto import Ditto as Ditto
    from rookery.algorithms.drfa import DRFA as DRFA
    from rookery.algorithms.extragradient import Extragradient as Extragradient
    from rookery.algorithms.f2sa import F2SA as F2SA
    from rookery.algorithms.fcsg import FCSG as FCSG
    from rookery.algorithms.fcsg import FCSGM as FCSGM
    from rookery.algorithms.fcsg import AccFCSGM as AccFCSGM
    from rookery.algorithms.fed_norm_sgda import FedNormSGDA as FedNormSGDA
    from rookery.algorithms.fed_norm_sgda import FedNormSGDAPlus as FedNormSGDAPlus
    from rookery.algorithms.fedavg import FedAvg as FedAvg
    from rookery.algorithms.fedbio import FedBiO as FedBiO
    from rookery.algorithms.fedbio import FedBiOAcc as FedBiOAcc
    from rookery.algorithms.fedbio_local import FedBiOAccLocal as FedBiOAccLocal
    from rookery.algorithms.fedbio_local import FedBiOLocal as FedBiOLocal
    from rookery.algorithms.fedbuff import FedBuff as FedBuff
    from rookery.algorithms.feddyn import FedDyn as FedDyn
    from rookery.algorithms.fedex import FedEx as FedEx
    from rookery.algorithms.fedexp import FedExP as FedExP
    from rookery.algorithms.fedgda_gt import FedGDAGT as FedGDAGT
    from rookery.algorithms.fedmbo import FedMBO as FedMBO
    from rookery.algorithms.fedmsa.fedmsa import FedMSA as FedMSA
    from rookery.algorithms.fednest.fednest import FedNest as FedNest
    from rookery.algorithms.fednest.fednest import FedNestSGD as FedNestSGD
    from rookery.algorithms.fednest.light import LFedNest as LFedNest
    from rookery.algorithms.fednest.light import LFedNestNonAlt as LFedNestNonAlt
    from rookery.algorithms.fednest.light import LFedNestSVRG as LFedNestSVRG
    from rookery.algorithms.fednova import FedNova as FedNova
    from rookery.algorithms.fedopt import FedAdagrad as FedAdagrad
    from rookery.algorithms.fedopt import FedAdam as FedAdam
    from rookery.algorithms.fedopt import FedAvgM as FedAvgM
    from rookery.algorithms.fedopt import FedYogi as FedYogi
    from rookery.algorithms.fedpaq import FedPAQ as FedPAQ
    from rookery.algorithms.fedprox import FedProx as FedProx
    from rookery.algorithms.fedrep import FedRep as FedRep
    from rookery.algorithms.fedsgda_m import FedSGDAM as FedSGDAM
    from rookery.algorithms.fedsgda_m import OptimisticGDA as OptimisticGDA
    from rookery.algorithms.fedxl.fedxl import FeDXL as FeDXL
    from rookery.algorithms.fessgda import FESSGDA as FESSGDA
    from rookery.algorithms.gda import GDA as GDA
    from rookery.algorithms.imaml import IMAML as IMAML
    from rookery.algorithms.memfbo import MemFBO as MemFBO
    from rookery.algorithms.mime import Mime as Mime
    from rookery.algorithms.mime import MimeLite as MimeLite
    from rookery.algorithms.nasa import NASA as NASA
    from rookery.algorithms.nested import Nested as Nested
    from rookery.algorithms.perfedavg import PerFedAvg as PerFedAvg
    from rookery.algorithms.pfedme import PFedMe as PFedMe
    from rookery.algorithms.prometheus.prometheus import Prometheus as Prometheus
    from rookery.algorithms.qfedavg import QFedAvg as QFedAvg
    from rookery.algorithms.scafflix import Scafflix as Scafflix
    from rookery.algorithms.scaffnew import ProxSkipVIP as ProxSkipVIP
    from rookery.algorithms.scaffnew import Scaffnew as Scaffnew
    from rookery.algorithms.scaffold import Scaffold as Scaffold
    from rookery.algorithms.scaffold_s import ScaffoldS as ScaffoldS
    from rookery.algorithms.scgd import SCGD as SCGD
    from rookery.algorithms.sgda import FedAvgS as FedAvgS
    from rookery.algorithms.simfbo import ShroFBO as ShroFBO
    from rookery.algorithms.simfbo import SimFBO as SimFBO
    from rookery.algorithms.soba import SOBA as SOBA
    from rookery.algorithms.stocbio import StocBiO as StocBiO
    from rookery.algorithms.stsa import STSA as STSA
    from rookery.algorithms.ttsa import TTSA as TTSA
else:
    __getattr__ = names_of(__name__)

__all__ = [
    "ADBO",
    "AFACD",
    "AFACS",
    "AFBO",
    "AID",
    "ALSET",
    "DRFA",
    "GDA",
    "NASA",
    "SCGD",
    "SDBO",
    "SOBA",
    "STSA",
    "TTSA",
    "AFLBilevel",
    "AgnosticFL",
    "AlternatingGDA",
    "ComFedL",
    "ComposedSGD",
    "Extragradient",
    "FedAvg",
    "FedAvgS",
    "FedBuff",
    "FedMBO",
    "FedMSA",
    "FedNest",
    "FedNestSGD",
    "FedProx",
    "LFedNest",
    "LFedNestNonAlt",
    "LFedNestSVRG",
    "Nested",
    "PerFedAvg",
    "Prometheus",
    "QFedAvg",
    "Scaffold",
    "ScaffoldS",
    "StocBiO",
]

GROUPED = (
    "AccFCSGM",
    "AggITD",
    "BOME",
    "BRFedBi",
    "BRFedBiM",
    "BRFedBiP",
    "CMSOBA",
    "CODASCA",
    "CSOBA",
    "Ditto",
    "EFSOBA",
    "F2SA",
    "FCSG",
    "FCSGM",
    "FESSGDA",
    "FeDXL",
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedBiO",
    "FedBiOAcc",
    "FedBiOAccLocal",
    "FedBiOLocal",
    "FedDyn",
    "FedEx",
    "FedExP",
    "FedGDAGT",
    "FedNormSGDA",
    "FedNormSGDAPlus",
    "FedNova",
    "FedPAQ",
    "FedRep",
    "FedSGDAM",
    "FedYogi",
    "IMAML",
    "MemFBO",
    "Mime",
    "MimeLite",
    "OptimisticGDA",
    "PFedMe",
    "ProxSkipVIP",
    "Scafflix",
    "Scaffnew",
    "ShroFBO",
    "SimFBO",
)
"""Algorithms that are imported from here; the top level of rookery has the most used alone."""
