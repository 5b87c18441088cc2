"""The remote engine: runs a program by messages to clients in other processes or machines."""

from rookery.remote.client.enforcer import Enforcer as Enforcer
from rookery.remote.client.site_policy import SitePolicy as SitePolicy
from rookery.remote.client.worker import Worker as Worker
from rookery.remote.engine import Remote as Remote
from rookery.remote.protocol.secure import SecureAggregation as SecureAggregation
from rookery.remote.server.policy import Policy as Policy
from rookery.remote.transports.in_process import Faults as Faults
from rookery.remote.transports.in_process import InProcess as InProcess
from rookery.remote.transports.monitor import Monitored as Monitored
from rookery.remote.transports.port import Failure as Failure
from rookery.remote.transports.port import Port as Port
from rookery.remote.transports.port import Transport as Transport

__all__ = [
    "Enforcer",
    "Failure",
    "Faults",
    "InProcess",
    "Monitored",
    "Policy",
    "Port",
    "Remote",
    "SecureAggregation",
    "SitePolicy",
    "Transport",
    "Worker",
]
