"""Data for all workers of a job: a data set that lies once in the memory of a host, and excerpts of its rows."""

from platoon_base.data.excerpt import excerpt
from platoon_base.data.shared_data import SharedData

__all__ = ["SharedData", "excerpt"]
