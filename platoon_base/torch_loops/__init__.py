"""PyTorch loops of one's own: averaged gradients, averaged buffers, and the moments of an optimizer.

Import it in scripts that use torch; nothing else in the base imports it.
"""

from platoon_base.torch_loops.backward import EarlyAverages
from platoon_base.torch_loops.flats import Bucket, Flats
from platoon_base.torch_loops.gradients import GradientAverage
from platoon_base.torch_loops.state import average_buffers, moments_of, tensors_beside

__all__ = ["Bucket", "EarlyAverages", "Flats", "GradientAverage", "average_buffers", "moments_of", "tensors_beside"]
