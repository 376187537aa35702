"""A repair of Fuel 0.2.0: a stream of an HDF5 file goes on after it was pickled.

`H5PYDataset` keeps its open files in the class, not in the stream, and nothing opens them in the process that unpickles
a stream in the middle of an epoch (fuel/datasets/hdf5.py, ``_file_handle``): its next batch is an ``OSError: no open
handle``. `platoon_base.compat.shims` applies it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from platoon_base.system.import_hook import AfterImport

__all__ = ["install"]

_STREAMS = "fuel.streams"


class _FuelFinder(AfterImport):
    """Repairs streams as soon as they are imported."""


def install() -> None:
    """Arrange that `DataStream` is repaired, now or when it is imported; a second time changes nothing."""
    if _STREAMS in sys.modules:
        _open_again(sys.modules[_STREAMS])
    elif not any(isinstance(finder, _FuelFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FuelFinder({_STREAMS: _open_again}))


def _open_again(streams: ModuleType) -> None:
    if hasattr(streams.DataStream, "__setstate__"):
        return

    def set_state(self: Any, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        files = sys.modules.get("fuel.datasets.hdf5")  # imported with the data set that was unpickled
        if files is not None and isinstance(self.dataset, files.H5PYDataset):
            self.data_state = self.dataset.open()

    streams.DataStream.__setstate__ = set_state
