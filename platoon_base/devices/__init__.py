"""Devices of a host: discovery, assignment to workers, and all calls of CUDA's driver and NCCL."""

from platoon_base.devices.checks import warn_if_not_on_device
from platoon_base.devices.isolation import WorkerGpu

__all__ = ["WorkerGpu", "warn_if_not_on_device"]
