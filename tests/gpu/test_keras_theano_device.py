"""Keras 2.3.1 on Theano whose weights are on GPUs: the center is there too, and NCCL averages gradients."""

import pytest
from keras_here import KERAS_2

if not KERAS_2:
    pytest.skip("about Keras 2.3.1 on Theano: `make test` runs this file in .venv", allow_module_level=True)

from platoon_base.devices.discovery import cuda_devices

DEVICES = cuda_devices().names
pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not DEVICES, reason="needs a CUDA device (see tests/README.md)"),
]

MODEL = """
import keras.backend as K
import theano

WIDTH = 20_000

class Scale(L.Layer):
    def build(self, shape):
        self.w = self.add_weight("w", (WIDTH,), initializer="ones")
        self.b = self.add_weight("b", (WIDTH,), initializer="zeros")
        super().build(shape)

    def call(self, x):
        return K.tanh(x * self.w + self.b)

def make(optimizer):
    model = keras.Sequential([Scale(input_shape=(WIDTH,))])
    model.compile(optimizer, "mean_squared_error")
    assert all("gpuarray" in type(weight.type).__module__ for weight in model.weights)
    return model

rng = np.random.RandomState(1)
x = rng.randn(32, WIDTH).astype("f4")
y = np.tanh(2 * x + 0.5).astype("f4")
rows = dict(batch_size=4, epochs=3, shuffle=False, verbose=0)
"""


def test_the_center_is_where_the_weights_are(run_keras):
    """It has no memory on the host to look at; all workers end with it, and have learned."""
    run_keras(
        MODEL
        + """
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
""",
        devices=(DEVICES * 2)[:2],
        center="device",
    ).require_success()


@pytest.mark.skipif(len(DEVICES) < 2, reason="needs two CUDA devices (see tests/README.md)")
def test_gradients_are_averaged_on_the_devices(run_keras):
    """By the Op of NCCL; against one process on the rows of both."""
    run_keras(
        MODEL
        + """
from platoon_base.theano_ops.gpu import GpuAllReduce

model = make(DistributedOptimizer(keras.optimizers.SGD(1000.0, momentum=0.9)))
model.fit(x[rank::2], y[rank::2], callbacks=distribute(), **rows)
nodes = model.train_function.function.maker.fgraph.toposort()
assert sum(isinstance(node.op, GpuAllReduce) for node in nodes) == 1

alone = make(keras.optimizers.SGD(1000.0, momentum=0.9))
alone.fit(x, y, **{**rows, "batch_size": 8})
np.testing.assert_allclose(flat(model.get_weights()), flat(alone.get_weights()), rtol=0, atol=2e-5)
assert abs(flat(alone.get_weights()) - flat([np.ones(WIDTH), np.zeros(WIDTH)])).max() > 0.1
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
""",
        devices=DEVICES[:2],
    ).require_success()
