from job_preamble import FOLDER, SharedData, await_file, np, os, rank, signal
from shared_data_preamble import names, rows


class Deadly:
    shape, dtype = rows.shape, rows.dtype

    def __getitem__(self, key):
        if isinstance(key, slice):  # not the fingerprint: the memory is there and half of it is written
            assert len(names()) == 1
            os.kill(os.getpid(), signal.SIGKILL)
        return rows[key]


def load():
    (FOLDER / "loading").touch()
    return Deadly() if rank == 0 else rows


if rank:
    await_file(FOLDER / "loading")
data = SharedData(load, "x")
np.testing.assert_array_equal(data.array, rows)
print("made here:", data.made_here, names())
