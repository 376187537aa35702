"""Running statistics of torch's norms, corrected for the smaller number of steps of N workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from platoon_base.dtypes import Array
from platoon_base.fingerprint import checksum
from platoon_base.worker import warn_once


class RunningStats:
    """Corrects averages of running statistics: N workers make N times fewer steps than one process.

    ::

        r := s + (mean_i r_i - s) (1 - prod_i k_i) / (1 - mean_i k_i)
        k_i := (1 - momentum)^n_i

    Worker i has the statistics r_i after n_i batches since the latest average s; n_i is the
    difference of ``num_batches_tracked``. If all n_i are equal, s decays as in one process that has
    had all batches of all workers. Statistics with ``momentum=None`` are means over all batches and
    need no correction.

    The modules keep the latest averages, so copies of a model have them too. ``weight`` is that of
    this worker in the means.
    """

    def __init__(self, model: Any, weight: float) -> None:
        self._modules = [module for module in model.modules() if _is_moving_average(module)]
        self._weight = weight

    def steps(self) -> Array:
        """Return the values to sum over the workers, shape (modules, 6); zeros for weight 0.

        For each module: log k_i, w_i k_i, a checksum c_i of its statistics, c_i^2, 1 and w_i.
        """
        found = np.zeros((len(self._modules), 6))
        values = _on_host(
            [each for module in self._modules for each in (module.num_batches_tracked, module.running_mean)]
        )
        for row, module, batches, mean in zip(found, self._modules, values[::2], values[1::2]):
            count = int(batches[0]) - vars(module)[_LATEST][0] if _LATEST in vars(module) else 0
            rate = min(max(1.0 - module.momentum, 1e-30), 1.0)
            check = checksum(mean.astype(np.float32)) % 2**16
            if self._weight and count >= 0:
                row[:] = count * np.log(rate), self._weight * rate**count, check, check**2, 1, self._weight
        return found

    def correct(self, summed: Array) -> None:
        """Correct the statistics, which are means over the workers, by the sum of all `steps`."""
        if not summed[:, -1].any():  # No worker counts, so nothing was averaged.
            return
        for (log_product, kept, checks, squares, workers, total), module in zip(summed, self._modules):
            if not total:
                continue
            # The comparison is exact: all are whole numbers.
            moved, equal = 1 - kept / total, workers * squares == checks**2
            # Equal statistics were copied from averaged ones, or come from the same batches.
            if _LATEST in vars(module) and moved > 0 and not equal:
                factor = float(-np.expm1(log_product) / moved)
                for buffer, before in zip((module.running_mean, module.running_var), vars(module)[_LATEST][1:]):
                    buffer.copy_(before + (buffer - before) * factor)
        self.keep()

    def keep(self) -> None:
        """Keep the statistics, which are equal on all workers, as the latest average."""
        for module, batches in zip(self._modules, _on_host([module.num_batches_tracked for module in self._modules])):
            values = module.running_mean.detach().clone(), module.running_var.detach().clone()
            vars(module)[_LATEST] = int(batches[0]), *values


def _on_host(tensors: Sequence[Any]) -> list[Array]:
    """Return flat values in float64, by one copy from the device."""
    flat = [tensor.detach().reshape(-1).to(tensors[0].device, torch.float64) for tensor in tensors]
    sizes = [len(each) for each in flat]
    return np.split(torch.cat(flat).cpu().numpy(), np.cumsum(sizes)[:-1]) if flat else []


# The attribute of a module with the number of its batches and the statistics at the latest average.
_LATEST = "_platoon_latest_average"


def _is_moving_average(module: Any) -> bool:
    """Return whether a module has running statistics whose batches torch counts."""
    if not isinstance(module, _NormBase) or module.momentum is None or module.num_batches_tracked is None:
        return False
    return isinstance(module.running_mean, torch.Tensor) and not torch.nn.parameter.is_lazy(module.running_mean)


def warn_of_sync_batch_norm(model: Any) -> None:
    """Warn if a model has SyncBatchNorm, but torch has no process group for it."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.SyncBatchNorm)]
    if names:
        warn_once(
            f"got SyncBatchNorm ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}) "
            "without a process group of torch, so it normalizes only by the rows of this "
            "worker's batch, as BatchNorm does. Use larger batches or GroupNorm if these are too "
            "few; or create a process group, torch.distributed.init_process_group, which "
            "SyncBatchNorm uses on GPUs"
        )
