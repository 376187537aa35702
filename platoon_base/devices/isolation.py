"""Keep torch, JAX and TensorFlow to the GPU of their worker; by default they take the first one, or all.

Theano gets its device by its flags. No framework is imported here: each is set right after the script imports it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from platoon_base.system.import_hook import AfterImport

__all__ = ["keep_to"]


def keep_to(device: str) -> None:
    """Make frameworks compute on this device; call it before the script begins.

    Parameters
    ----------
    device : str
        The device of this worker; nothing is done unless it is a CUDA device, such as ``"cuda1"``.
    """
    found = re.fullmatch(r"cuda(\d+)", device)
    if found is None:
        return
    number = int(found[1])
    actions: dict[str, Callable[[Any], None]] = {
        "torch": lambda torch: _keep_torch(torch, number),
        "jax": lambda jax: jax.config.update("jax_cuda_visible_devices", str(number)),
        "tensorflow": lambda tensorflow: _keep_tensorflow(tensorflow, number),
    }
    late = {name: actions.pop(name) for name in list(actions) if name in sys.modules}
    sys.meta_path.insert(0, AfterImport(actions))
    for name, action in late.items():
        action(sys.modules[name])


def _keep_torch(torch: Any, number: int) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_device(number)


def _keep_tensorflow(tensorflow: Any, number: int) -> None:
    devices = tensorflow.config.list_physical_devices("GPU")
    if devices:
        tensorflow.config.set_visible_devices(devices[number : number + 1], "GPU")
