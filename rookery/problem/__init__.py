"""What is solved: losses and their derivatives, which have never heard of clients."""

from rookery.loss import OverBatch as OverBatch
from rookery.loss import OverPairs as OverPairs
from rookery.problem import batch_norm as batch_norm
from rookery.problem.bilevel import PersonalBilevel as PersonalBilevel
from rookery.problem.conditional import Conditional as Conditional
from rookery.problem.gauss_newton import GaussNewton as GaussNewton
from rookery.problem.masks import masked_mean as masked_mean
from rookery.problem.xrisk import XRisk as XRisk
