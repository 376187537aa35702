import sys

from platoon_base import compat

compat.apply()

import numpy as np
import theano
from blocks.algorithms import GradientDescent, Scale
from blocks.bricks import MLP, Linear, Logistic, Tanh
from blocks.bricks.cost import BinaryCrossEntropy
from blocks.bricks.recurrent import SimpleRecurrent
from blocks.extensions import FinishAfter
from blocks.extensions.monitoring import DataStreamMonitoring
from blocks.graph import ComputationGraph
from blocks.initialization import Constant, IsotropicGaussian
from blocks.main_loop import MainLoop
from blocks.model import Model
from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream
from theano import tensor

rng = np.random.RandomState(0)
y = rng.randint(0, 2, (8, 1)).astype("uint8")
options = {"weights_init": IsotropicGaussian(0.3), "biases_init": Constant(0)}
if sys.argv[1] == "mlp":
    x = rng.randn(8, 3).astype(theano.config.floatX)
    features = tensor.matrix("features")
    brick = MLP([Tanh(), Logistic()], [3, 4, 1], **options)
    brick.initialize()
    output = brick.apply(features)
else:  # scan, which runs on Python's loop here
    x = rng.randn(8, 5, 3).astype(theano.config.floatX)
    features = tensor.tensor3("features")
    before = Linear(3, 4, name="before", **options)
    recurrent = SimpleRecurrent(4, Tanh(), **options)
    after = Linear(4, 1, name="after", **options)
    for brick in (before, recurrent, after):
        brick.initialize()
    hidden = recurrent.apply(before.apply(features).dimshuffle(1, 0, 2))
    output = Logistic().apply(after.apply(hidden[-1]))
target = tensor.matrix("targets", dtype="uint8")
cost = BinaryCrossEntropy().apply(target, output)
cost.name = "cost"
parameters = ComputationGraph(cost).parameters
assert len(parameters) > 3

# Oracle: the gradients of the whole function, and plain NumPy for the steps.
gradients = theano.function([features, target], theano.grad(cost, parameters))
start = [p.get_value() for p in parameters]
expected = start
for batch in (slice(0, 4), slice(4, 8)):
    for p, value in zip(parameters, expected):
        p.set_value(value)
    slopes = gradients(x[batch], y[batch])
    assert all(np.abs(np.asarray(slope)).max() > 0 for slope in slopes)
    expected = [value - np.asarray(0.1, value.dtype) * slope for value, slope in zip(expected, slopes)]
for p, value in zip(parameters, start):
    p.set_value(value)

dataset = IndexableDataset({"features": x, "targets": y})
stream = DataStream.default_stream(dataset, iteration_scheme=SequentialScheme(8, 4))
algorithm = GradientDescent(cost=cost, parameters=parameters, step_rule=Scale(0.1))
extensions = [FinishAfter(after_n_epochs=1), DataStreamMonitoring([cost], stream, prefix="all")]
main_loop = MainLoop(algorithm, stream, model=Model(cost), extensions=extensions)
main_loop.run()
assert main_loop.log.status["iterations_done"] == 2
assert main_loop.log[2]["all_cost"] < main_loop.log[0]["all_cost"]
for p, value in zip(parameters, expected):
    np.testing.assert_allclose(p.get_value(), value, rtol=1e-4, atol=1e-6)
print("trained")
