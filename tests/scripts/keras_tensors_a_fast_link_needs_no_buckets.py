from keras_preamble import DistributedOptimizer, dense
from keras_tensors_order import rank, steps, train

from platoon_base.torch_loops import Flats
from platoon_plugins.keras.backends import torch_gradients

torch_gradients.BUCKET_S = 1e-3
model = dense(optimizer=DistributedOptimizer("sgd"))
for seconds, calls in (((1.0, 1e-3), [0, 1, 1]), ((1e-9, 1.0), [0, 1, 1]), ((0.02, 1.0), [0, 1, 1, 4 + 3, 1 + 3])):
    Flats.seconds = lambda flats: seconds[rank]
    train(model, rows=20)
    found = steps()
    assert len(found) == len(calls) + 1, (seconds, found)
    assert [step.count("call") for step in found[:-1]] == calls, (seconds, found)
