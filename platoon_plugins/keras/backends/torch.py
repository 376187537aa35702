"""Keras 3 on torch: on the CPU weights and gradients are changed in place, as NumPy views of their memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from platoon_plugins.keras.backends.keras3 import Keras3, KerasVariable
from platoon_plugins.keras.gradients import GradientAverage

__all__ = ["backend"]

Array = np.ndarray[Any, Any]


class _TorchVariable(KerasVariable):
    def __init__(self, variable: Any) -> None:
        super().__init__(variable)
        self._memory: tuple[int, Array] | None = None

    def on_host(self) -> bool:
        """See `KerasVariable.on_host`."""
        return bool(self.variable.value.device.type == "cpu")

    def get_value(self, borrow: bool = False, return_internal_type: bool = False) -> Any:
        """See `Variable.get_value`."""
        tensor = self.variable.value.detach()
        if not borrow or not self.on_host() or not tensor.is_contiguous():
            return super().get_value(borrow, return_internal_type)
        # The same array for the same memory tells the caller that nothing has to be written back.
        if self._memory is None or self._memory[0] != tensor.data_ptr():
            self._memory = tensor.data_ptr(), tensor.numpy()
        return self._memory[1]


class _Torch(Keras3):
    variable = _TorchVariable

    def seed(self, seed: int) -> None:
        """See `Backend.seed`: torch shuffles, and draws the masks of Dropout."""
        torch.manual_seed(seed)

    def random_state(self) -> Any:
        """See `Backend.random_state`."""
        return torch.get_rng_state()

    def restore_random_state(self, state: Any, common_seed: int) -> None:
        """See `Backend.restore_random_state`."""
        torch.set_rng_state(state)

    def averaged(self, gradients: Sequence[Any], average: GradientAverage) -> Sequence[Any]:
        """See `Keras3.averaged`."""
        arrays = [_view_or_copy(gradient) for gradient in gradients]
        average.in_place(arrays)
        for gradient, array in zip(gradients, arrays):
            if array.ctypes.data != gradient.data_ptr():
                gradient.copy_(torch.from_numpy(array))
        return gradients


def _view_or_copy(gradient: Any) -> Array:
    tensor = gradient.detach()
    if tensor.is_sparse:
        raise TypeError("got a sparse gradient: it cannot be averaged; make the layer's gradient dense")
    array: Array = tensor.contiguous().cpu().numpy()
    return array


def backend() -> _Torch:
    """Return the back end."""
    return _Torch()
