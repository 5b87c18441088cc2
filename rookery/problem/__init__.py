"""What is solved: losses and their derivatives, which have never heard of clients."""

from rookery.loss import OverBatch as OverBatch
from rookery.loss import OverPairs as OverPairs
