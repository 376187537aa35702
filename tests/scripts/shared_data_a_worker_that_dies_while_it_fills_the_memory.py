import numpy as np
import os
import signal

from shared_data_preamble import folder, names, rank, rows
from watching import await_file
from platoon_base.data import SharedData


class Deadly:
    shape, dtype = rows.shape, rows.dtype

    def __getitem__(self, key):
        if isinstance(key, slice):  # not the fingerprint: the memory is there and half of it is written
            assert len(names()) == 1
            os.kill(os.getpid(), signal.SIGKILL)
        return rows[key]


def load():
    (folder / "loading").touch()
    return Deadly() if rank == 0 else rows


if rank:
    await_file(folder / "loading")
data = SharedData(load, "x")
np.testing.assert_array_equal(data.array, rows)
print("made here:", data.made_here, names())
