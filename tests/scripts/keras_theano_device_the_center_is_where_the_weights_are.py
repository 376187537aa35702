from keras_preamble import *
from keras_theano_device_model import *


def ask(watch, batch):
    try:
        worker.center_arrays()
    except PlatoonError as exc:
        told.append(str(exc))


told = []
watch = Watch(batch_end=ask)
model = make(keras.optimizers.SGD(20_000.0))
before = float(model.evaluate(x, y, verbose=0))
model.fit(x[rank::2], y[rank::2], callbacks=distribute([watch], EASGD(), every_n_batches=2), **rows)
assert len(told) == 12 and all("it is on devices" in each for each in told), told
ends = everyones(flat(model.get_weights()))
assert (ends[0] == ends[1]).all()
assert float(model.evaluate(x, y, verbose=0)) < 0.75 * before
