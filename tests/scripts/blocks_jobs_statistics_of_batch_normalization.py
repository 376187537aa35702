from blocks_preamble import *
from blocks.bricks import BatchNormalizedMLP
from blocks.graph import apply_batch_normalization, get_batch_normalization_updates
from blocks.filter import get_brick

x, y = T.matrix("features"), T.lmatrix("targets")
first_values = dict(weights_init=IsotropicGaussian(0.5), biases_init=Constant(0.1))
mlp = BatchNormalizedMLP([Tanh(), Softmax()], [6, 5, 3], **first_values)
mlp.initialize()
cost = CategoricalCrossEntropy().apply(y.flatten(), mlp.apply(x)).copy(name="cost")
(training_cost,) = apply_batch_normalization(ComputationGraph([cost])).outputs
parameters = ComputationGraph([training_cost]).parameters
algorithm = GradientDescent(cost=training_cost, parameters=parameters, step_rule=Scale(0.0))
updates = get_batch_normalization_updates(ComputationGraph([training_cost]))
algorithm.add_updates([(p, 0.5 * p + 0.5 * value) for p, value in updates])
statistics = [p for p, _ in updates]
own = []
# By hand: each worker's number of steps of one process by each batch. Blocks computes those of the
# second layer with the population statistics of the first.
of_batch = theano.function([x], [value for _, value in updates])
first = [p.get_value() for p in statistics]
for batch in shard_stream(stream(32)).get_epoch_iterator(as_dict=True):
    for p, value in zip(statistics, of_batch(batch["features"])):
        p.set_value(0.5**size * p.get_value() + (1 - 0.5**size) * value)
expected = np.concatenate([p.get_value() for p in statistics])
for p, value in zip(statistics, first):
    p.set_value(value)


def look(main_loop):
    own.append(np.concatenate([p.get_value() for p in statistics]))


monitoring = DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")
saved = dict(parameters=statistics, save_main_loop=False, after_training=False)
between = Checkpoint(tmp + "/between.tar", every_n_batches=1, **saved)
behind = Checkpoint(tmp + "/behind.tar", after_epoch=True, **saved)
main_loop = MainLoop(
    algorithm,
    shard_stream(stream(32)),
    extensions=[
        ParameterSync(EASGD(), every_n_batches=1),
        Look(after_epoch=look),
        between,
        monitoring,
        behind,
        Look(after_epoch=look),
        FinishAfter(after_n_epochs=1),
    ],
)
main_loop.run()
np.testing.assert_allclose(own[0], expected, rtol=1e-4)
before, after = everyones(own[0]), everyones(own[1])
if rank == 0:
    for name, expected in (("between", before[0]), ("behind", after[0])):
        with open(f"{tmp}/{name}.tar", "rb") as file:
            found = load_parameters(file)
        names = [get_brick(p).get_hierarchical_name(p) for p in statistics]
        np.testing.assert_array_equal(np.concatenate([found[name] for name in names]), expected)
assert (before[0] != before[1]).any()
np.testing.assert_allclose(after, np.broadcast_to(before.mean(axis=0), after.shape), rtol=1e-6)
