from job_preamble import SharedData, np, worker
from shared_data_preamble import names, rows

data = SharedData(rows, "x")
kept = data[3]
worker.barrier()
data.remove()
data.close()
worker.barrier()
assert names() == []
worker.barrier()
other = SharedData(rows[::-1], "x")
np.testing.assert_array_equal(other[0], rows[-1])
np.testing.assert_array_equal(kept, rows[3])
worker.barrier()
