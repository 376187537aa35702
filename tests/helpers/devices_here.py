"""The devices that tests of whole jobs run on."""

from scripts_here import behind

from platoon_base.devices.discovery import can_share_center, list_devices
from platoon_base.errors import BackendUnavailableError

__all__ = ["DEVICES", "WHY_NOT", "on_devices"]


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


def on_devices(run_job):
    """Make a function that runs a script on the first N devices, with the names of `device_preamble`."""

    def run(script, workers=2, **options):
        place = "host" if WHY_NOT else "device"
        return run_job(behind("device_preamble", script), workers, devices=DEVICES[:workers], center=place, **options)

    return run
