import numpy as np

from shared_data_preamble import names, rows
from platoon_base.data import SharedData

data = SharedData(rows)
assert len(names()) == 1
assert np.array_equal(data, rows)
