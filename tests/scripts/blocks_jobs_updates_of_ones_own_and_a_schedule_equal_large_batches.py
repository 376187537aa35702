"""No step rule tells what is trained; the schedule counts batches, of which one process has as many."""

from blocks_preamble import *
from blocks.algorithms import UpdatesAlgorithm
from blocks.extensions.training import SharedVariableModifier
from platoon_base.theano_ops import all_reduce


def train(batches, average, own=None):
    w = theano.shared(np.linspace(-1, 1 + rank * average, 6).astype("float32"), name="w")
    rate = theano.shared(np.float32(0.5), name="rate")
    x, y = T.matrix("features"), T.lmatrix("targets")
    gradient = theano.grad(T.sqr((x * w).sum(axis=1) - y.flatten()).mean(dtype="float32"), w)
    if average:
        (gradient,) = all_reduce(gradient, op="mean")
    extensions = [own([w])] if own else []
    schedule = SharedVariableModifier(rate, lambda n: np.float32(0.5 / (1 + n)))
    algorithm = UpdatesAlgorithm([(w, (w - rate * gradient).astype("float32"))])
    MainLoop(algorithm, batches, extensions=[*extensions, schedule, FinishAfter(after_n_epochs=2)]).run()
    return w.get_value()


together = train(shard_stream(stream(64)), True, lambda params: ParameterSync(None, parameters=params))
np.testing.assert_allclose(together, train(stream(64, batch=16), False), rtol=1e-5, atol=1e-6)
assert (everyones(together) == together).all()
center = train(shard_stream(stream(64)), False, lambda params: ParameterSync(EASGD(), parameters=params))
assert (everyones(center) == center).all()
with raises(ConfigurationError, "ParameterSync(..., parameters=[...])"):
    train(shard_stream(stream(64)), False, lambda params: ParameterSync(EASGD()))
