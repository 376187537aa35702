from keras_preamble import *
from keras_reshuffling_marks import *

seen = rows_of_fit(*shard(x, y), shuffle=False)
assert all(batches == np.arange(rank, ROWS, size).reshape(-1, BATCH).tolist() for batches in seen.values()), seen
for seen in (rows_of_fit(*shard(x, y, reshuffle=False)), rows_of_fit(*shard(x, y), shuffle="batch")):
    assert fixed(seen), seen
