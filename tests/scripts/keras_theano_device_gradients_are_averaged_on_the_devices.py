from keras_preamble import *
from keras_theano_device_model import *
from platoon_base.theano_ops.gpu import GpuAllReduce

model = make(DistributedOptimizer(keras.optimizers.SGD(1000.0, momentum=0.9)))
model.fit(x[rank::2], y[rank::2], callbacks=distribute(), **rows)
nodes = model.train_function.function.maker.fgraph.toposort()
assert sum(isinstance(node.op, GpuAllReduce) for node in nodes) == 1

alone = make(keras.optimizers.SGD(1000.0, momentum=0.9))
alone.fit(x, y, **{**rows, "batch_size": 8})
np.testing.assert_allclose(flat(model.get_weights()), flat(alone.get_weights()), rtol=0, atol=2e-5)
assert abs(flat(alone.get_weights()) - flat([np.ones(WIDTH), np.zeros(WIDTH)])).max() > 0.1
same_everywhere(model)
