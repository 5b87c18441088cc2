"""Ray clusters: joined by address, or started on this machine for it alone."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOOPBACK = "127.0.0.1"
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}


def join(ray: Any, address: str) -> None:
    """Join a cluster that is there."""
    if address.partition(":")[0] not in (_LOOPBACK, "localhost"):
        ray.init(address=address, **_QUIET)
        return
    with _on_this_machine(ray):
        ray.init(address=address, _node_ip_address=_LOOPBACK, **_QUIET)


def start(ray: Any, num_cpus: int, object_store_memory: int) -> None:
    """Start a cluster that can be reached from this machine alone."""
    with _on_this_machine(ray):
        ray.init(
            address="local",
            _node_ip_address=_LOOPBACK,
            num_cpus=num_cpus,
            object_store_memory=object_store_memory,
            include_dashboard=False,
            **_QUIET,
        )
    if (bound := ray.nodes()[0]["NodeManagerAddress"]) != _LOOPBACK:
        ray.shutdown()
        raise RuntimeError(
            f"this version of Ray listens at {bound} and not on this machine alone. Start a "
            "cluster of your own and give its address."
        )


def free_cpus(ray: Any) -> float:
    """CPUs that nobody has reserved in the cluster, or those of this machine if there is none."""
    if ray.is_initialized():
        return ray.available_resources().get("CPU", 1)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _on_this_machine(ray: Any) -> Iterator[None]:
    """Have Ray listen on loopback alone, and its processes import what this one can.

    Ray takes a public address instead of loopback, unless it believes that clusters are not for
    this machine. It reads the variable when it is imported, its processes when they are started.
    """
    constants = ray._private.ray_constants
    was, before = constants.ENABLE_RAY_CLUSTER, dict(os.environ)
    constants.ENABLE_RAY_CLUSTER = False
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        with warnings.catch_warnings():
            # what Ray forks becomes another program at once, and takes no thread of JAX along
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
            yield
    finally:
        constants.ENABLE_RAY_CLUSTER = was
        for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "PYTHONPATH"):
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]
