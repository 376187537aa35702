"""Loops of NumPy and JAX: `prepare`, averaged gradients, and parameters shared with a center.

It imports no framework: JAX is used if the script has imported it.
"""

from typing import TYPE_CHECKING

from platoon_base.array_loops.gathered import gather_for_metrics, print, save
from platoon_base.array_loops.loaders import batches
from platoon_base.job.joining import is_main, rank, world_size
from platoon_base.job.once import report
from platoon_base.system.imports import lazy_names

if TYPE_CHECKING:
    from platoon_base.array_loops.prepared import average, common, prepare, sync

__all__ = [
    "average",
    "batches",
    "common",
    "gather_for_metrics",
    "is_main",
    "prepare",
    "print",
    "rank",
    "report",
    "save",
    "sync",
    "world_size",
]

# The import of `prepare` seeds generators.
__getattr__ = lazy_names(__name__, {"platoon_base.array_loops.prepared": "average common prepare sync"})
