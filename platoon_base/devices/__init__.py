"""The devices of a host: finding them, giving each worker its own, and all calls of CUDA's driver and of NCCL.

The launcher asks `discovery`, the started process applies `isolation` and `checks`. Above `cuda`, the driver's calls,
`runtime` gives centers what they need of a device, whichever framework computes there. `nccl` has NCCL's functions.
"""

from platoon_base.devices.checks import warn_if_not_on_device
from platoon_base.devices.isolation import WorkerGpu

__all__ = ["WorkerGpu", "warn_if_not_on_device"]
