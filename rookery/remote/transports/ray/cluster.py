"""Ray clusters: joined by address, or started on this machine and reachable only from it.

A cluster that is started here listens on loopback and asks for Ray's token, which is in a file of
its owner (``~/.ray/auth_token``): other users of this machine are kept out, too.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Package = Any  # Ray has no types for its actors and references
"""The package ``ray``, which is optional."""

_LOOPBACK = "127.0.0.1"
_MODE = "RAY_AUTH_MODE"  # Ray's own variable; by default a new cluster asks for a token
_QUIET = {"log_to_driver": False, "logging_level": "warning"}


def join(ray: Package, address: str) -> None:
    """Join a running cluster."""
    if address.partition(":")[0] not in (_LOOPBACK, "localhost"):
        ray.init(address=address, **_QUIET)
        return
    with _on_this_machine(ray):
        ray.init(address=address, _node_ip_address=_LOOPBACK, **_QUIET)


def start(ray: Package, num_cpus: int, object_store_memory: int) -> None:
    """Start a cluster that listens on loopback only and asks for a token."""
    if (mode := os.environ.get(_MODE, "token").lower()) != "token":
        raise ValueError(
            f"{_MODE}={mode} would let every user of this machine run code in the cluster. Unset "
            "it, or start a cluster yourself and pass its address: Ray(address=...)."
        )
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
            f"this version of Ray listens on {bound}, not on loopback only. Start a cluster "
            "yourself and pass its address: Ray(address=...)."
        )


def free_cpus(ray: Package) -> float:
    """Unreserved CPUs of the cluster, or the CPUs of this machine if there is no cluster."""
    if ray.is_initialized():
        return ray.available_resources().get("CPU", 1)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _on_this_machine(ray: Package) -> Iterator[None]:
    """Make Ray listen on loopback only, and its processes import what this one can.

    Ray replaces loopback by a public address unless clusters are disabled on this platform. This
    process reads that setting when Ray is imported, Ray's own processes when they start.
    """
    constants = ray._private.ray_constants
    was, before = constants.ENABLE_RAY_CLUSTER, dict(os.environ)
    constants.ENABLE_RAY_CLUSTER = False
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        with warnings.catch_warnings():
            # Ray's fork execs at once, so JAX's threads do no harm
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
            yield
    finally:
        constants.ENABLE_RAY_CLUSTER = was
        for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "PYTHONPATH"):
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]
