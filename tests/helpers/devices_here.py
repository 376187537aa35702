"""The devices that tests of whole jobs run on."""

from platoon_base.devices.discovery import can_share_center, list_devices
from platoon_base.errors import BackendUnavailableError

__all__ = ["DEVICES", "WHY_NOT"]


def _find():
    """Name the devices to run on: those of CUDA, if there are two, or one of OpenCL twice."""
    try:
        found = list_devices()
    except BackendUnavailableError:
        return []
    cuda = [name for name in found if name.startswith("cuda")]
    return cuda if len(cuda) > 1 else [name for name in found if name.startswith("opencl")][:1] * 2


DEVICES = _find()
# Why the center cannot be in their memory.
WHY_NOT = can_share_center(DEVICES[:2]) if DEVICES else "there are no devices"
