"""One paper, one file."""

from rookery.algorithms import parts as parts
from rookery.algorithms.fedmbo import FedMBO as FedMBO
from rookery.algorithms.fednest import FedNest as FedNest
from rookery.algorithms.fednest import FedNestSGD as FedNestSGD
from rookery.algorithms.lfednest import LFedNest as LFedNest
from rookery.algorithms.lfednest import LFedNestNonAlt as LFedNestNonAlt
from rookery.algorithms.lfednest import LFedNestSVRG as LFedNestSVRG
from rookery.algorithms.nested import Nested as Nested
from rookery.algorithms.sgda import FedAvgS as FedAvgS

__all__ = [
    "FedAvgS",
    "FedMBO",
    "FedNest",
    "FedNestSGD",
    "LFedNest",
    "LFedNestNonAlt",
    "LFedNestSVRG",
    "Nested",
]
