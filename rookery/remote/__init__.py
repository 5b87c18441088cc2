"""Programs across machines: the words of the language as messages."""

from rookery.remote.engine import Remote as Remote
from rookery.remote.inprocess import Faults as Faults
from rookery.remote.inprocess import InProcess as InProcess
from rookery.remote.policy import Policy as Policy
from rookery.remote.port import Failure as Failure
from rookery.remote.port import Port as Port
from rookery.remote.port import Transport as Transport
from rookery.remote.watched import Watched as Watched
from rookery.remote.worker import Worker as Worker

__all__ = [
    "Failure",
    "Faults",
    "InProcess",
    "Policy",
    "Port",
    "Remote",
    "Transport",
    "Watched",
    "Worker",
]
