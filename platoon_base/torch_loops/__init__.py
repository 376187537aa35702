"""PyTorch loops: averaged gradients, averaged buffers, and the moments of an optimizer.

Only scripts that use torch import it, so the base does not need torch.
"""

from platoon_base.torch_loops.backward import EarlyAverages
from platoon_base.torch_loops.flats import FlatAverage
from platoon_base.torch_loops.gradients import GradientAverage
from platoon_base.torch_loops.state import average_buffers, moments_of, tensors_beside

__all__ = ["EarlyAverages", "FlatAverage", "GradientAverage", "average_buffers", "moments_of", "tensors_beside"]
