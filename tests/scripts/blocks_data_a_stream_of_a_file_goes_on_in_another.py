import pickle
import sys
from platoon_base import compat

compat.apply()
import h5py
import numpy as np
from fuel.datasets import H5PYDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream

path, stage, in_memory = sys.argv[1:]
if stage == "begin":
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(12)
        file.attrs["split"] = H5PYDataset.create_split_array({"train": {"y": (0, 12)}})
    data = H5PYDataset(path, which_sets=("train",), load_in_memory=in_memory == "True")
    batches = DataStream(data, iteration_scheme=SequentialScheme(12, 4)).get_epoch_iterator()
    next(batches)
    with open(path + ".pickle", "wb") as file:
        pickle.dump(batches, file)
else:
    with open(path + ".pickle", "rb") as file:
        batches = pickle.load(file)
    rows = [y.tolist() for (y,) in batches]
    assert rows == [[4, 5, 6, 7], [8, 9, 10, 11]], rows
    assert len(list(batches.data_stream.get_epoch_iterator())) == 3
