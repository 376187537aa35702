from blocks_preamble import *
from platoon_base.errors import LayoutMismatchError

cost, error = network(seed=3)
first = trained(
    cost,
    shard_stream(stream(64)),
    [ParameterSync(EASGD()), FinishAfter(after_n_batches=2), Checkpoint(tmp + "/model.tar", save_main_loop=False)],
)
worker.barrier("saved")
begun = []
look = Look(before_epoch=lambda main_loop: begun.append(values(main_loop)))
ours = [ParameterSync(EASGD()), Load(tmp + "/model.tar"), FinishAfter(after_n_batches=1)]
second = trained(network(seed=4)[0], shard_stream(stream(64)), [look, *ours])
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
