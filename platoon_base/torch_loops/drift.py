"""Find parameters that have come to differ between workers: averaged gradients keep them equal, unless steps differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from platoon_base.errors import ConfigurationError

__all__ = ["NUM_SLOTS", "STEPS_ON_DEVICES", "DriftCheck"]

Tensor = Any

_NUM_VALUES = 64
_NOT_FINITE, _TURN = _NUM_VALUES, _NUM_VALUES + 1  # the slots behind: how many values are not finite, and the turn
NUM_SLOTS = _NUM_VALUES + 2
# Of the largest value looked at: what rounding leaves on unlike processors is far below, other steps are soon above it.
_TOLERANCE, _ROUNDINGS = 1e-3, 8
_TURNS = 1024  # a mean of such numbers is exact enough to tell whether all are equal
STEPS_ON_DEVICES = 100  # to look there waits for the device


class DriftCheck:
    """Compares some values of the parameters with their mean over the workers, which comes with the gradients' one.

    The values are equal on all workers if their mean is the own value on each. All values are looked at in turn, up to
    64 of one parameter at a time.

    Parameters
    ----------
    parameters : sequence of (str, tensor)
        With their names, all on one device.
    slots : tensor, shape (NUM_SLOTS,), float32
        The part of a flat buffer, on the parameters' device, that is averaged between `put` and `require_none`.
    every : int
        Number of steps of which one is looked at, the first among them.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]], slots: Tensor, every: int) -> None:
        self._parameters = [(name, tensor) for name, tensor in parameters if tensor.numel()]
        self._slots = slots
        self._own = np.zeros(NUM_SLOTS, np.float32)
        self._every = every
        self._step = -1
        self._name, self._tolerance = "", _TOLERANCE

    def put(self) -> None:
        """Write this worker's values for one step."""
        self._step += 1
        if not self._looks():
            return
        turn, number = divmod(self._step // self._every, len(self._parameters))
        self._name, tensor = self._parameters[number]
        self._tolerance = max(_TOLERANCE, _ROUNDINGS * torch.finfo(tensor.dtype).eps)
        values = _part(tensor.detach(), turn)  # now, as .half() or .to() replace its memory
        self._own[:] = 0
        self._own[: len(values)] = values
        finite = np.isfinite(self._own)
        if not finite.all():
            self._own[~finite] = 0
            self._own[_NOT_FINITE] = NUM_SLOTS - finite.sum()
        self._own[_TURN] = self._step % _TURNS
        self._slots.copy_(torch.from_numpy(self._own))

    def require_none(self) -> None:
        """Raise `ConfigurationError` if the values of the other workers differ from those that were put."""
        if not self._looks():
            return
        own, mean = self._own, self._slots.cpu().numpy()
        *apart, out_of_turn = np.abs(mean - own)
        if out_of_turn > _TOLERANCE:  # a step failed on some workers alone: begin anew together
            self._step = -1
            return
        at = int(np.argmax(apart))
        if apart[_NOT_FINITE] > _TOLERANCE or apart[at] > self._tolerance * np.abs(own[:_NUM_VALUES]).max():
            here, there = (
                f"{values} that are not finite" if at == _NOT_FINITE else f"{values:.6g}"
                for values in (float(own[at]), float(mean[at]))
            )
            raise ConfigurationError(
                f"got {self._name} with other values than the other workers have, {here} in place of {there}, their "
                "mean: averaged gradients train one model only while all workers make equal steps from equal values; "
                "load values on all workers, and decide by numbers of all (worker.reduce_metrics), not by a loss of "
                "this worker's batches, about learning rates and steps"
            )

    def _looks(self) -> bool:
        return bool(self._parameters) and self._step % self._every == 0


def _part(tensor: Tensor, turn: int) -> np.ndarray[Any, Any]:
    """Return up to 64 values of a tensor: in turn the first of each row, then the next of each row."""
    start, row = divmod(turn, len(tensor)) if tensor.ndim > 1 else (turn, 0)
    values = (tensor[row] if tensor.ndim > 1 else tensor).reshape(-1)  # a row, as it may have to be copied
    start = start % -(-len(values) // _NUM_VALUES) * _NUM_VALUES
    part: np.ndarray[Any, Any] = values[start : start + _NUM_VALUES].float().cpu().numpy()
    return part
