from blocks_preamble import CategoricalCrossEntropy, Checkpoint, Constant, EASGD, FinishAfter, IsotropicGaussian, Load
from blocks_preamble import Look, MLP, ParameterSync, Softmax, T, Tanh, loop, network, shard_stream, stream, tmp, values
from blocks_preamble import worker

from platoon_base.errors import LayoutMismatchError
from refusing import raises

cost, error = network(seed=3)
first = loop(
    cost,
    shard_stream(stream(64)),
    [ParameterSync(EASGD()), FinishAfter(after_n_batches=2), Checkpoint(tmp + "/model.tar", save_main_loop=False)],
)
first.run()
worker.barrier("saved")
begun = []
look = Look(before_epoch=lambda main_loop: begun.append(values(main_loop)))
ours = [ParameterSync(EASGD()), Load(tmp + "/model.tar"), FinishAfter(after_n_batches=1)]
second = loop(network(seed=4)[0], shard_stream(stream(64)), [look, *ours])
second.run()
assert (begun[0] == values(first)).all()

x, y = T.matrix("features"), T.lmatrix("targets")
first_values = dict(weights_init=IsotropicGaussian(0.5), biases_init=Constant(0.1))
mlp = MLP([Tanh(), Softmax()], [6, 5, 3], name="other", **first_values)
mlp.initialize()
other = CategoricalCrossEntropy().apply(y.flatten(), mlp.apply(x)).copy(name="cost")
ours = [ParameterSync(EASGD()), Load(tmp + "/model.tar"), FinishAfter(after_n_batches=1)]
third = loop(other, shard_stream(stream(64)), ours)
with raises(LayoutMismatchError, "/other/linear_0.W", "/mlp/linear_0.W"):
    third.run()
