"""With averaged gradients; with a rule its choices are those of all workers too, and so is the best model."""

from keras_preamble import *
import keras_tuner

x, y = data(64)
xv, yv = data(31, seed=1)


def searched(wrap, name, callbacks, batch_size, rows, valid_rows):
    def build(hp):
        sgd = keras.optimizers.SGD(hp.Float("rate", 0.001, 1.0, sampling="log"))
        return dense(units=(hp.Int("units", 2, 16), 3), optimizer=wrap(sgd))

    tuner = keras_tuner.RandomSearch(
        build, "val_loss", max_trials=2, seed=1, project_name=name, directory=os.path.join(sys.argv[1], f"tuner{rank}")
    )
    tuner.search(
        *rows,
        validation_data=valid_rows,
        epochs=2,
        batch_size=batch_size,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    trials = sorted(tuner.oracle.trials.items())
    found = [[trial.score, *map(trial.hyperparameters.get, ("rate", "units"))] for _, trial in trials]
    (best,) = tuner.get_best_models(1)
    loss, _ = best.evaluate(xv, yv, verbose=0)
    assert abs(loss - min(score for score, *_ in found)) < 1e-5, (loss, found)
    return np.array(found), flat(best.get_weights())


shards = shard(x, y), shard(xv, yv)
one = searched(lambda sgd: sgd, "one", [], 8 * size, (x, y), (xv, yv))
averaged = searched(DistributedOptimizer, "averaged", distribute([Watch()]), 8, *shards)
by_rule = searched(lambda sgd: sgd, "rule", distribute([Watch()], rule=EASGD()), 8, *shards)
for ours, right in zip(averaged, one):
    np.testing.assert_allclose(ours, right, rtol=0, atol=1e-5)
assert (by_rule[0][:, 1:] == one[0][:, 1:]).all()
for found in averaged, by_rule:
    for values in found:
        assert (everyones(values) == values).all()
