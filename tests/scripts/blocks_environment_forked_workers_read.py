import os
import sys

import fuel.datasets  # noqa: F401 - for the launcher, which reads the imports
import numexpr
import numpy as np
import tables
from blocks.main_loop import MainLoop  # noqa: F401 - likewise
from fuel.datasets import H5PYDataset

# sys.modules by its name would keep the launcher from forking
assert "platoon_base.worker_process.forkserver_main" in vars(sys)["modules"]
path = f"{os.environ['PLATOON_RANK']}.hdf5"
values = np.arange(300_000.0).reshape(-1, 3)
with tables.open_file(path, "w") as file:
    for library in ("blosc", "zlib"):
        filters = tables.Filters(complevel=5, complib=library)
        file.create_carray("/", library, obj=values, filters=filters)
with tables.open_file(path) as file:
    assert (file.root.blosc[:] == values).all()
import h5py

with h5py.File(path, "w") as file:
    file["features"] = values
    split = {"train": {"features": (0, len(values))}}
    file.attrs["split"] = H5PYDataset.create_split_array(split)
data = H5PYDataset(path, which_sets=("train",), load_in_memory=True)
data.load()
assert (data.data_sources[0] == values).all()
assert (numexpr.evaluate("2 * values + 1") == 2 * values + 1).all()
print("all read")
