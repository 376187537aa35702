"""Finding the devices of a host, giving each worker its own, and checking that it computes there.

The launcher asks `discovery`, the started process applies `isolation` and `checks`.
"""

from platoon_base.devices.checks import warn_if_not_on_device
from platoon_base.devices.isolation import WorkerGpu

__all__ = ["WorkerGpu", "warn_if_not_on_device"]
