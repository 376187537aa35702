"""PyTorch loops: `prepare`, averaged gradients and buffers, and the moments of an optimizer.

Only scripts that use torch import it, so the base does not need torch.
"""

from typing import TYPE_CHECKING

from platoon_base.job.joining import is_main, rank, world_size
from platoon_base.job.once import print, report
from platoon_base.system.imports import lazy_names
from platoon_base.torch_loops.backward import EarlyAverages
from platoon_base.torch_loops.flats import FlatAverage
from platoon_base.torch_loops.gathered import gather_for_metrics, save
from platoon_base.torch_loops.gradients import GradientAverage
from platoon_base.torch_loops.loaders import is_divided
from platoon_base.torch_loops.state import average_buffers, moments_of, tensors_beside

if TYPE_CHECKING:
    from platoon_base.torch_loops.prepared import prepare

__all__ = [
    "EarlyAverages",
    "FlatAverage",
    "GradientAverage",
    "average_buffers",
    "gather_for_metrics",
    "is_divided",
    "is_main",
    "moments_of",
    "prepare",
    "print",
    "rank",
    "report",
    "save",
    "tensors_beside",
    "world_size",
]

# The import of `prepare` seeds generators.
__getattr__ = lazy_names(__name__, {"platoon_base.torch_loops.prepared": "prepare"})
