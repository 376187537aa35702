"""Where the values of a loop are exchanged: on a CUDA device, or through the host."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from platoon_base.array_loops.trees import has_gpu, jax
from platoon_base.worker import Worker, warn_once


class Place:
    """The device of a loop, if values stay there, or why they do not; the first parameters decide."""

    def __init__(self, worker: Worker, guarded: Callable[[Any], Any]) -> None:
        self._worker, self._guarded = worker, guarded
        self.device: Any = None  # An `on_device.Device`.
        self.module: Any = None  # `on_device`, which needs JAX.
        self.why = ""
        self._looked = False

    def look_at(self, leaves: Sequence[Any]) -> None:
        if self._looked:
            return
        self._looked = True
        if self._worker.global_size == 1 or not has_gpu():
            return
        try:
            self.module = importlib.import_module("platoon_base.array_loops.on_device")
        except ImportError as exc:
            self.why = f"this needs jax>=0.5, and platoon-plugins with its C extensions: {exc}"
            return
        ordinal, devices = self.module.cuda_device(), jax().local_devices()
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax().Array)]
        if ordinal is None:
            self.why = f"a worker needs one CUDA device, and has {len(devices)} of {devices[0].device_kind}"
            self.why += ": start it by platoon launch -D cuda0 cuda1" if len(devices) > 1 else ""
        elif leaves and not arrays:
            self.why = "the parameters are no arrays of JAX"
        elif not self.module.Device.takes(arrays):
            self.why = "parameters are on another device, or on several"
        else:
            self.device = self.module.Device(self._worker, ordinal, self._guarded)

    def agree(self) -> None:
        """Sum on the devices of all workers, or on none; a collective call."""
        self._looked = True  # This holds for all steps.
        everywhere = all(self._worker.gather(self.device is not None, name="where gradients are averaged"))
        if self.device is not None and not everywhere:
            self.device, self.why = None, "those of another worker do"
        elif self.device is not None:
            self.device.sums = self._worker.advanced.device_all_reduce(self.device.ordinal)

    def stay_on_host(self) -> None:
        """Decide for the host, if nothing is decided yet."""
        if not self._looked:
            self._looked, self.why = True, "prepare got no parameters" if has_gpu() else ""

    def takes(self, leaves: Sequence[Any]) -> bool:
        return self.device is not None and bool(self.device.takes(leaves))

    def warn(self, what: str, nbytes: int) -> None:
        if self.why:
            warn_once(
                f"{what}, {nbytes / 1e6:.3g} MB, pass through host memory, about 1 to 5 ms for each MB "
                f"({self.why}): exchange less often, by prepare(..., sync_every=10) or strategy=DiLoCo()"
            )
