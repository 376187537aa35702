"""Registration of Blocks and Fuel with the base.

Fuel 0.2.0 needs a repair: `H5PYDataset` keeps its open files in the class, not in the stream. A process that unpickles
a stream in the middle of an epoch does not open them (fuel/datasets/hdf5.py, ``_file_handle``), so reading the next
batch raises ``OSError: no open handle``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from platoon_base.frameworks import Framework

if TYPE_CHECKING:
    from platoon_base.frameworks import Check

__all__ = ["BLOCKS", "FRAMEWORK"]

# Fuel's C extension compiles on no Python after 3.6; without a compiler pip leaves it out.
FUEL = "CC=true LDSHARED=true pip install fuel==0.2.0 'numpy<1.24'"
# Blocks is on no package index. It is installed without dependencies, as pip would try to build Fuel and Theano again.
BLOCKS = "blocks @ git+https://github.com/mila-iqia/blocks.git"


def _checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    from platoon_base.frameworks import SETUP, importable

    yield importable("Fuel", "fuel", FUEL)
    remedy = f"{SETUP}, then pip install --no-deps --no-build-isolation '{BLOCKS}'"
    yield importable("Blocks", "blocks", remedy)


def _open_again(streams: ModuleType) -> None:
    """Open the file of a stream when the stream is unpickled."""
    if hasattr(streams.DataStream, "__setstate__"):
        return

    def set_state(self: Any, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        files = sys.modules.get("fuel.datasets.hdf5")  # imported with the data set that was unpickled
        if files is not None and isinstance(self.dataset, files.H5PYDataset):
            self.data_state = self.dataset.open()

    streams.DataStream.__setstate__ = set_state


FRAMEWORK = Framework(
    # Fuel imports numexpr and blosc2, whose native threads are started again in a forked process.
    preload=("fuel", "blocks", "platoon_plugins.blocks"),
    worth_preloading=("blocks",),
    after_import={"fuel.streams": _open_again},
    checks=_checks,
    distributions=("blocks", "fuel"),
    variables=("FUEL", "BLOCKS"),
    rule_goes_to="ParameterSync (Blocks)",
    one_model_by="With Blocks prepare(main_loop) before its run, or ParameterSync() among its extensions, makes them "
    "train one model",
    reports_by="DistributedMonitoring of Blocks",
)
