"""Registration of Blocks and Fuel with the base."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from platoon_base.frameworks import Framework

if TYPE_CHECKING:
    from platoon_base.frameworks import Check

# Fuel's C extension does not compile after Python 3.6; without a compiler pip leaves it out.
FUEL = "CC=true LDSHARED=true pip install fuel==0.2.0 'numpy<1.24'"
# Blocks is on no package index. Without --no-deps, pip would try to build Fuel and Theano again.
BLOCKS = "blocks @ git+https://github.com/mila-iqia/blocks.git"


def _checks(earlier: Mapping[str, Check]) -> Iterator[Check]:
    from platoon_base.frameworks import SETUP, importable

    yield importable("Fuel", "fuel", FUEL)
    remedy = f"{SETUP}, then pip install --no-deps --no-build-isolation '{BLOCKS}'"
    yield importable("Blocks", "blocks", remedy)


def _open_again(streams: ModuleType) -> None:
    """Open the file of a stream when the stream is unpickled."""
    # `H5PYDataset` of Fuel 0.2.0 keeps open files in the class (fuel/datasets/hdf5.py).
    # A process that unpickles a stream within an epoch lacks them: "OSError: no open handle".
    if hasattr(streams.DataStream, "__setstate__"):
        return

    def set_state(self: Any, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # The unpickled data set has imported this module.
        files = sys.modules.get("fuel.datasets.hdf5")
        if files is not None and isinstance(self.dataset, files.H5PYDataset):
            self.data_state = self.dataset.open()

    streams.DataStream.__setstate__ = set_state


FRAMEWORK = Framework(
    # Fuel imports numexpr and blosc2, which start their native threads again in a forked process.
    preload=("fuel", "blocks", "platoon_plugins.blocks"),
    worth_preloading=("blocks",),
    after_import={"fuel.streams": _open_again},
    checks=_checks,
    distributions=("blocks", "fuel"),
    variables=("FUEL", "BLOCKS"),
    rule_goes_to="ParameterSync (Blocks)",
    one_model_by="With Blocks, call prepare(main_loop) before its run, or add ParameterSync() to "
    "its extensions, and they train one model",
    reports_by="DistributedMonitoring of Blocks",
)
