"""One paper, one file."""

from rookery.algorithms import parts as parts
from rookery.algorithms.fednest import FedNest as FedNest

__all__ = ["FedNest"]
