"""Detect parameters that differ between workers, which happens if their steps differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from platoon_base.errors import ConfigurationError

Tensor = Any

_NUM_VALUES = 64
# Two more slots: the number of values that are not finite, and the step number.
_NOT_FINITE, _TURN = _NUM_VALUES, _NUM_VALUES + 1
NUM_SLOTS = _NUM_VALUES + 2
# Relative to the largest checked value. Rounding on different processors is far below it; other
# steps soon exceed it.
_TOLERANCE, _ROUNDINGS = 1e-3, 8
_TURNS = 1024  # The mean of such numbers is exact enough to detect different ones.
STEPS_ON_DEVICES = 100  # Checks are rarer on devices: each waits for the device.


class DriftCheck:
    """Compares some values of the parameters with their mean over the workers.

    The mean is averaged together with the gradients: ``slots`` are float32 elements of a flat
    buffer, on the parameters' device, that is averaged between `put` and `require_none`. One step
    of ``every`` is checked, the first among them. The values rotate: up to 64 of one parameter per
    check.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]], slots: Tensor, every: int) -> None:
        self._parameters = [(name, tensor) for name, tensor in parameters if tensor.numel()]
        self._slots = slots
        self._own = np.zeros(NUM_SLOTS, np.float32)
        self._every = every
        self._step = -1
        self._name, self._tolerance = "", _TOLERANCE

    def put(self) -> None:
        self._step += 1
        if not self._looks():
            return
        turn, number = divmod(self._step // self._every, len(self._parameters))
        self._name, tensor = self._parameters[number]
        self._tolerance = max(_TOLERANCE, _ROUNDINGS * torch.finfo(tensor.dtype).eps)
        # The tensor is detached here, since .half() or .to() replace its memory.
        values = _part(tensor.detach(), turn)
        self._own[:] = 0
        self._own[: len(values)] = values
        finite = np.isfinite(self._own)
        if not finite.all():
            self._own[~finite] = 0
            self._own[_NOT_FINITE] = NUM_SLOTS - finite.sum()
        self._own[_TURN] = self._step % _TURNS
        self._slots.copy_(torch.from_numpy(self._own))

    def require_none(self) -> None:
        """Raise `ConfigurationError` if the other workers' values differ from those of `put`."""
        if not self._looks():
            return
        own, mean = self._own, self._slots.cpu().numpy()
        *apart, out_of_turn = np.abs(mean - own)
        # A step failed on some workers only: all restart the rotation.
        if out_of_turn > _TOLERANCE:
            self._step = -1
            return
        at = int(np.argmax(apart))
        if apart[_NOT_FINITE] > _TOLERANCE or apart[at] > self._tolerance * np.abs(own[:_NUM_VALUES]).max():
            here, there = (
                f"{values} that are not finite" if at == _NOT_FINITE else f"{values:.6g}"
                for values in (float(own[at]), float(mean[at]))
            )
            raise ConfigurationError(
                f"got {self._name} with other values than on the other workers, {here} instead of "
                f"{there}, their mean: averaged gradients train one model only while all workers "
                "make equal steps from equal values. Load values on all workers, and base "
                "decisions about learning rates and steps on numbers of all workers "
                "(worker.reduce_metrics), not on a loss of this worker's batches"
            )

    def _looks(self) -> bool:
        return bool(self._parameters) and self._step % self._every == 0


def _part(tensor: Tensor, turn: int) -> np.ndarray[Any, Any]:
    """Return up to 64 values of a tensor: in turn the first of each row, then the next ones."""
    start, row = divmod(turn, len(tensor)) if tensor.ndim > 1 else (turn, 0)
    # Only a row is reshaped, since that may copy it.
    values = (tensor[row] if tensor.ndim > 1 else tensor).reshape(-1)
    start = start % -(-len(values) // _NUM_VALUES) * _NUM_VALUES
    part: np.ndarray[Any, Any] = values[start : start + _NUM_VALUES].float().cpu().numpy()
    return part
