"""A cost that is a sum, streams that an extension walks, and extensions that write files, beside one process."""

from blocks_preamble import *
from blocks.extensions.saveload import LOADED_FROM
from fuel.datasets import IterableDataset
from fuel.schemes import ConstantScheme
from fuel.transformers import Batch, Mapping
from blocks.bricks import Linear
from theano import tensor

rows = np.random.RandomState(0).normal(size=(48, 3)).astype("float32")


def same(data):
    return data


class Save(SimpleExtension):
    def do(self, which, *args):
        np.savez(f"{tmp}/{type(self).__name__}.npz", *self.main_loop.model.get_parameter_values().values())


class SaveBoth(SimpleExtension):
    do = Save.do


class Start(TrainingExtension):
    """Finds the data set, and notes a folder that it has loaded from."""

    def before_training(self):
        stream = self.main_loop.data_stream
        while hasattr(stream, "data_stream"):
            stream = stream.data_stream
        assert stream.dataset.dictionary == {"a": 0}
        self.main_loop.log.current_row[LOADED_FROM] = tmp


def trained(mode, extensions):
    data = IterableDataset({"x": list(rows), "y": list(rows.sum(axis=1, keepdims=True))})
    data.dictionary = {"a": 0}
    stream = Mapping(Batch(DataStream(data), ConstantScheme(24 // size)), same)
    line = Linear(3, 1, weights_init=Constant(0), biases_init=Constant(0))
    line.initialize()
    x, y = tensor.matrix("x"), tensor.matrix("y")
    cost = 0.5 * tensor.sqr(y - line.apply(x)).sum()
    cost.name = "cost"
    main_loop = loop(cost, stream, [*extensions, Start(), FinishAfter(after_n_epochs=2)], Scale(0.002))
    prepare(main_loop, mode=mode, leader_only=Save).run()
    return main_loop


main_loop = trained("sync", [])
weights, bias = np.zeros((3, 1)), 0.0
for batch in (rows[:24], rows[24:]) * 2:  # by hand, in one process
    error = batch.dot(weights) + bias - batch.sum(axis=1, keepdims=True)
    weights, bias = weights - 0.002 * batch.T.dot(error), bias - 0.002 * error.sum()
found = {name.split(".")[-1]: value for name, value in main_loop.model.get_parameter_values().items()}
np.testing.assert_allclose(found["W"], weights, rtol=1e-4)
np.testing.assert_allclose(found["b"], bias, rtol=1e-3)

trained("async", [Save(after_epoch=True), SaveBoth(after_epoch=True)])
worker.barrier("saved")
if rank == 0:
    assert {"Save.npz", "SaveBoth.npz"} <= set(os.listdir(tmp)), os.listdir(tmp)
