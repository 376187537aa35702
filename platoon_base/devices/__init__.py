"""Devices of a host: discovery, assignment to workers, and all calls of CUDA's driver and NCCL."""

from platoon_base.devices.isolation import WorkerGpu, warn_if_not_on_device

__all__ = ["WorkerGpu", "warn_if_not_on_device"]
