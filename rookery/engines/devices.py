"""Which devices a program runs on."""

from collections.abc import Sequence
from typing import Any

import jax

from rookery import check

Device = Any  # jax.Device, which type checkers do not take for a type
Devices = int | Sequence[Device] | None
"""How many devices, or which; None means JAX's default device."""

REPLICATED, BY_CLIENT = "replicated", "by client"


def chosen(devices: Devices) -> tuple[Device, ...]:
    """The devices, or an error if they cannot work together; none of them is the default device.

    >>> len(chosen(1)), chosen(None)
    (1, ())
    """
    if devices is None:
        return ()
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        some = tuple(devices)
    else:
        some = _first(check.count("devices", devices))
    if not some:
        raise ValueError("devices is empty; name at least one device, or leave it at None.")
    for device in some:
        if not isinstance(device, jax.Device):
            raise TypeError(
                f"devices must be a number or devices out of jax.devices(), got {device!r}."
            )
    if len(set(some)) < len(some):
        twice = next(device for device in some if some.count(device) > 1)
        raise ValueError(f"{twice} is named twice in devices; each can be used once.")
    platforms = sorted({device.platform for device in some})
    if len(platforms) > 1:
        raise ValueError(
            f"devices are of the platforms {' and '.join(platforms)}; a program runs on one kind. "
            f"Use jax.devices({platforms[0]!r}) or jax.devices({platforms[1]!r})."
        )
    known = jax.devices()
    for device in some:
        if device.platform != known[0].platform:
            raise ValueError(
                f"{device} is of the platform {device.platform!r}, but JAX runs on "
                f"{known[0].platform!r}, where the other arrays are. Set "
                f"JAX_PLATFORMS={device.platform} before JAX starts, or use jax.devices()."
            )
        if device not in known:
            raise ValueError(f"{device} is none of jax.devices(); was the backend restarted?")
    _check_processes(some)
    return some


def _first(n: int) -> tuple[Device, ...]:
    known = jax.devices()
    if n > len(known):
        more = (
            ". For several devices on one processor set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={n} before JAX starts"
            if known[0].platform == "cpu"
            else ""
        )
        raise ValueError(
            f"devices={n}, but JAX sees {len(known)} ({known[0].platform}){more}. "
            f"Use at most {len(known)}."
        )
    return tuple(known[:n])


def _check_processes(some: tuple[Device, ...]) -> None:
    """Either all devices are of this process, or every process has some of them."""
    processes = {device.process_index for device in some}
    everyone = set(range(jax.process_count()))
    if processes not in ({jax.process_index()}, everyone):
        raise ValueError(
            f"devices are of the processes {sorted(processes)}, of which there are "
            f"{len(everyone)}; this is process {jax.process_index()}. Use devices of all "
            "processes, as in devices=jax.device_count(), or jax.local_devices()."
        )
