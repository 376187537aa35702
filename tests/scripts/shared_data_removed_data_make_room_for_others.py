import numpy as np

from shared_data_preamble import names, rows, worker
from platoon_base.data import SharedData

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
