from job_preamble import SharedData, np, rank, worker
from shared_data_preamble import rows

data = SharedData(rows, "train")
old = data.array
worker.barrier()
for count in (5000, 70_000, 10, 1200):
    if rank == 1:
        data.resize(count)
        with data.writing() as writable:
            writable[-1] = count
    worker.barrier()
    assert data.shape == (count, 33), data.shape
    assert (data[-1] == count).all() and (data.excerpt([-1]) == count).all()
    worker.barrier()
np.testing.assert_array_equal(data[:9], rows[:9])
assert (data[9] == 10).all() and not data[10:1199].any()
np.testing.assert_array_equal(old[:9], rows[:9])
assert len(old) == 1000
late = SharedData(rows, "train")  # a worker that comes later finds the rows of now
assert len(late) == 1200 and not late.made_here
data.close(), late.close()
worker.barrier()
