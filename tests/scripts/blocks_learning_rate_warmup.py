from blocks_preamble import *
from platoon_plugins.blocks import LearningRateWarmup, scale_learning_rate


class Rates(TrainingExtension):
    seen = ()

    def before_batch(self, batch):
        self.seen += (float(self.main_loop.algorithm.step_rule.step_rule.learning_rate.get_value()),)


how, resumed = sys.argv[2], len(sys.argv) > 3
factor = {"linear": 2.0, "sqrt": 2.0**0.5}[how]
if resumed:
    with open(tmp + "/loop.tar", "rb") as file:
        main_loop = load(file)
    assert main_loop.status["iterations_done"] == 4
else:
    rule = Scale(scale_learning_rate(0.1, how=how))
    warmup = LearningRateWarmup(rule.learning_rate, warmup_epochs=2, steps_per_epoch=3, how=how)
    extensions = [
        ParameterSync(),
        warmup,
        Rates(),
        FinishAfter(after_n_epochs=3),
        Checkpoint(tmp + "/loop.tar", after_n_batches=4, after_training=False),
    ]
    train = shard_stream(stream(48), uneven="drop")
    main_loop = loop(network()[0], train, extensions, AllReduceGradients(rule))
main_loop.run()
(rates,) = [extension.seen for extension in main_loop.extensions if isinstance(extension, Rates)]
expected = [0.1 * (1 + (factor - 1) * min(k, 6) / 6) for k in range(9)]
np.testing.assert_allclose(rates, expected, rtol=1e-6)
ends = same_everywhere(main_loop)

if resumed:
    np.testing.assert_array_equal(ends, np.load(tmp + "/ends.npy"))
else:
    # One process with batches twice as large, at these rates.
    rule = Scale(0.1)
    steps = iter(expected)
    set_rate = Look(before_batch=lambda main_loop: rule.learning_rate.set_value(np.float32(next(steps))))
    alone = loop(network()[0], stream(48, batch=16), [set_rate, FinishAfter(after_n_epochs=3)], rule)
    begun = values(alone)
    alone.run()
    assert abs(values(alone) - begun).max() > 0.01
    np.testing.assert_allclose(ends, values(alone), rtol=1e-4, atol=1e-6)
    if rank == 0:
        np.save(tmp + "/ends.npy", ends)
