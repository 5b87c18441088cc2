"""Procedures that algorithms are put together from."""

from rookery.algorithms.parts.fedihgp import FedIHGP as FedIHGP
from rookery.algorithms.parts.fedihgp import FedIHGPSum as FedIHGPSum
from rookery.algorithms.parts.lipschitz import PowerIteration as PowerIteration
from rookery.algorithms.parts.local import PerCall as PerCall

__all__ = ["FedIHGP", "FedIHGPSum", "PerCall", "PowerIteration"]
