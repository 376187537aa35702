import numpy as np
from keras_preamble import Watch, distribute, everyones, rank, stop
from keras_stream_head import make

model = make()
x, y = np.random.RandomState(rank).rand(2, 48, 3).astype("f4")
rows = dict(batch_size=4, verbose=0)
model.fit(x, y[:, :1], callbacks=distribute(), **rows)
watch = Watch(batch_end=lambda callback, batch: rank == 0 and batch >= 2 and stop(callback))
model.fit(x, y[:, :1], callbacks=distribute([watch]), **rows)
counts = everyones([watch.batches])
assert (counts == counts[0]).all() and counts[0] < 12, counts
