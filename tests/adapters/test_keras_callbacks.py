"""What callbacks see, write and survive in a fit of several workers, on every back end that is installed."""

import importlib.util

import pytest
from keras_here import needs_keras_3

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]


def needs(package):
    there = importlib.util.find_spec(package.partition(".")[0]) and importlib.util.find_spec(package)
    return pytest.mark.skipif(not there, reason=f"needs {package}: `make test` runs this where it is installed")


@needs_keras_3
def test_callbacks_see_the_values_of_all_workers_at_an_evaluations_end(run_keras):
    """Such as TensorBoard, which writes them; and a deep copy of the list is for a fit of its own."""
    run_keras(
        """
        import copy
        x, y = data(64)
        xv, yv = data(31, seed=1)

        class AtTestEnd(keras.callbacks.Callback):
            seen = []
            def on_test_end(self, logs=None):
                self.seen.append(dict(logs))

        model = dense(optimizer=keras.optimizers.SGD(0.0))
        names = ("loss", "accuracy")
        expected = dict(zip(names, dense().evaluate(xv, yv, verbose=0)))
        checkpoint = keras.callbacks.ModelCheckpoint(os.path.join(sys.argv[1], "a.weights.h5"), save_weights_only=True,
                                                     save_freq=3)
        callbacks = distribute([AtTestEnd(), checkpoint])
        for own in (copy.deepcopy(callbacks), copy.deepcopy(callbacks), callbacks):
            model.fit(*shard(x, y), validation_data=shard(xv, yv), epochs=2, batch_size=8, verbose=0, callbacks=own)
        assert len(AtTestEnd.seen) == 6
        for logs in AtTestEnd.seen:
            assert all(abs(logs[name] - expected[name]) < 1e-6 for name in names), (logs, expected)
        model.evaluate(xv[rank:], yv[rank:], verbose=0, callbacks=[AtTestEnd()])  # outside of a fit it is one's own
        """
    ).require_success()


@pytest.mark.parametrize("rule", ["EASGD()", "LocalSGD()"])
def test_callbacks_that_come_to_the_list_later_see_the_center_too(run_keras, rule):
    """Such as those that KerasTuner adds to a copy of the list; what they change stays, everywhere."""
    run_keras(
        """
        from platoon_plugins.keras import LocalSGD
        x, y = data(96)

        class Added(keras.callbacks.Callback):
            seen, doubled = [], 0
            def on_epoch_end(self, epoch, logs=None):
                self.seen.append(flat(self.model.get_weights()))
                if epoch == 2:
                    self.model.set_weights([2 * w for w in self.model.get_weights()])
                    self.doubled = flat(self.model.get_weights())
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 3 and RULE == "LocalSGD()":
                    assert (flat(self.model.get_weights()) == self.doubled).all()

        model = dense(optimizer=keras.optimizers.SGD(0.1))
        added = Added()
        model.fit(*shard(x, y), epochs=5, batch_size=8, verbose=0,
                  callbacks=[*distribute(rule=eval(RULE), every_n_batches=2), added])
        assert len(added.seen) == 5
        seen = worker.all_gather(np.array(added.seen))
        assert (seen[0] == seen[1]).all()
        assert abs(np.diff(seen[0], axis=0)).max(axis=1).all(), "they have learned"
        assert (worker.all_gather(added.doubled)[0] == added.doubled).all()
        """.replace("RULE", repr(rule))
    ).require_success()


def test_what_a_callback_changes_reaches_the_center_once_all_have_read_it(run_keras):
    """Rank 1 reads the center as late as it can: when rank 0 has done all that it does by itself."""
    run_keras(
        """
        x, y = data(32)
        gathers, sums, changed = worker.gather, worker.advanced.sum_arrays, os.path.join(sys.argv[1], "changed")

        def gather(value, *, name="gather", **options):
            if name.startswith("keras vote"):
                open(changed, "w").close()
            return gathers(value, name=name, **options)

        def sum_arrays(name, *args, **options):
            summed = sums(name, *args, **options)
            deadline = time.monotonic() + 60
            while name.startswith("keras epoch") and not os.path.exists(changed):
                assert time.monotonic() < deadline
            return summed

        import time
        if rank == 0:
            worker.gather = gather
        else:
            worker.advanced.sum_arrays = sum_arrays

        class Doubling(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.found = flat(self.model.get_weights())
                self.model.set_weights([2 * w for w in self.model.get_weights()])

        model, doubling = dense(optimizer=keras.optimizers.SGD(0.1)), Doubling()
        model.fit(*shard(x, y), epochs=1, batch_size=8, verbose=0, callbacks=distribute([doubling], rule=EASGD()))
        found = everyones(doubling.found)
        assert (found[0] == found[1]).all()
        assert (everyones(flat(model.get_weights())) == 2 * found).all()
        """
    ).require_success()


@needs_keras_3
@needs("keras_tuner")
@pytest.mark.slow
def test_a_search_of_kerastuner_equals_that_of_one_process(run_keras):
    """With averaged gradients; with a rule its choices are those of all workers too, and so is the best model."""
    run_keras(
        """
        import keras_tuner
        x, y = data(64)
        xv, yv = data(31, seed=1)

        def searched(wrap, name, callbacks, batch_size, rows, valid_rows):
            def build(hp):
                sgd = keras.optimizers.SGD(hp.Float("rate", 0.001, 1.0, sampling="log"))
                return dense(units=(hp.Int("units", 2, 16), 3), optimizer=wrap(sgd))
            tuner = keras_tuner.RandomSearch(build, "val_loss", max_trials=2, seed=1, project_name=name,
                                             directory=os.path.join(sys.argv[1], f"tuner{rank}"))
            tuner.search(*rows, validation_data=valid_rows, epochs=2, batch_size=batch_size, shuffle=False, verbose=0,
                         callbacks=callbacks)
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
        """
    ).require_success()


@needs_keras_3
@needs("orbax.checkpoint")
def test_an_orbax_checkpoint_in_the_middle_of_an_epoch_is_written_once_and_is_the_center(run_keras, tmp_path):
    run_keras(
        """
        from orbax.checkpoint import v1 as orbax
        x, y = data(64)
        folder = os.path.join(sys.argv[1], "checkpoints")

        def push(callback, batch):
            if callback.batches in (1, 5):
                callback.model.set_weights([w + 1 + rank for w in callback.model.get_weights()])

        model = dense(optimizer=keras.optimizers.SGD(0.0))
        start = model.get_weights()
        # Rank 1 must not come to the end of its epoch, and move the center, before rank 0 has saved it.
        wait = Watch(batch_end=lambda callback, batch: batch == 3 and worker.barrier("saved by rank 0"))
        own = folder if rank == 0 else folder + str(rank)
        checkpoint = keras.callbacks.OrbaxCheckpoint(own, save_freq=3, save_weights_only=True)
        callbacks = distribute([Watch(batch_end=push), checkpoint, wait], every_n_batches=100)
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=callbacks)
        if rank == 0:
            assert os.listdir(folder) == ["3"]
            saved = orbax.load_checkpointables(os.path.join(folder, "3"))["pytree"]["trainable_variables"]
            leaves = keras.tree.flatten(saved)
            for value in start:
                assert any(np.shape(leaf) == value.shape and (np.asarray(leaf) == value).all() for leaf in leaves)
        else:
            assert not os.listdir(own)
        """
    ).require_success()


@needs_keras_3
@needs("tensorboard")
def test_tensorboard_is_written_once_with_the_values_of_all_workers(run_keras, tmp_path):
    run_keras(
        """
        import tensorflow as tf
        from tensorflow.core.util import event_pb2
        x, y = data(64)
        xv, yv = data(31, seed=1)
        folder = os.path.join(sys.argv[1], f"logs{rank}")
        model = dense(optimizer=keras.optimizers.SGD(0.0))
        board = keras.callbacks.TensorBoard(folder, write_graph=False)
        model.fit(*shard(x, y), validation_data=shard(xv, yv), batch_size=8, verbose=0, callbacks=distribute([board]))
        if rank:
            assert not os.path.exists(folder)
        else:
            found = {}
            for kind in ("train", "validation"):
                (name,) = os.listdir(os.path.join(folder, kind))
                for record in tf.data.TFRecordDataset(os.path.join(folder, kind, name)):
                    for value in event_pb2.Event.FromString(record.numpy()).summary.value:
                        found[kind, value.tag] = float(tf.make_ndarray(value.tensor))
            train, valid = dense().evaluate(x, y, verbose=0), dense().evaluate(xv, yv, verbose=0)
            assert abs(found["train", "epoch_loss"] - train[0]) < 1e-6, (found, train)
            for tag, value in {"epoch_loss": valid[0], "evaluation_loss_vs_iterations": valid[0],
                               "evaluation_accuracy_vs_iterations": valid[1]}.items():
                assert abs(found["validation", tag] - value) < 1e-6, (found, valid)
        """
    ).require_success()
