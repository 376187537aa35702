"""Real fits of real Keras models on several processes, the same tests on every back end that is installed."""

import os
import subprocess
import sys

import pytest
from keras_here import KERAS_2, needs_keras_3

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]


def test_workers_with_averaged_gradients_equal_one_process_with_larger_batches(run_keras):
    """Weight by weight to 1e-5 after 20 steps, with clipping behind the average, and state in the optimizer."""
    run_keras(
        """
        x, y = data(20 * size * 8)
        optimizers = {
            "sgd": lambda: keras.optimizers.SGD(0.5, momentum=0.9, clipnorm=0.05),
            "adam": lambda: keras.optimizers.Adam(0.01),
        }
        for name, make in optimizers.items():
            alone = dense(optimizer=make())
            alone.fit(x, y, batch_size=8 * size, shuffle=False, verbose=0)
            model = dense(optimizer=DistributedOptimizer(make()))
            if rank:
                model.set_weights([w + 1 for w in model.get_weights()])  # rank 0's count
            model.fit(*shard(x, y), batch_size=8, shuffle=False, verbose=0, callbacks=distribute())
            moved = abs(flat(alone.get_weights()) - flat(dense().get_weights())).max()
            difference = abs(flat(alone.get_weights()) - flat(model.get_weights())).max()
            assert moved > 0.02, moved
            assert difference < 1e-5, (name, difference)
            assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
            steps = model.optimizer.iterations
            assert int(keras.backend.get_value(steps) if KERAS_2 else steps.numpy() if hasattr(steps, "numpy")
                       else steps.value) == 20
        """,
        workers=3,
    ).require_success()


def test_logs_are_those_of_one_process_on_all_the_data(run_keras):
    """Unequal shards, partial batches, metrics with state; of training too, seen with weights that stand still."""
    outcome = run_keras(
        """
        x, y = data(101)
        xv, yv = data(53, seed=1)
        metrics = lambda: ["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
        watch = Watch()
        model = dense(optimizer=keras.optimizers.SGD(0.0), metrics=metrics())
        model.fit(*shard(x, y), validation_data=shard(xv, yv), epochs=2, batch_size=8, verbose=0,
                  callbacks=distribute([watch], rule=ASGD()))
        names = ["loss", "accuracy", "auc", "precision"]
        one = dict(zip(names, dense(metrics=metrics()).evaluate(x, y, verbose=0)))
        valid = dict(zip(names, dense(metrics=metrics()).evaluate(xv, yv, verbose=0)))
        for logs in watch.logs:
            for name in names:
                assert abs(logs[name] - one[name]) < 1e-6, (name, logs[name], one[name])
                assert abs(logs["val_" + name] - valid[name]) < 1e-6, (name, logs["val_" + name], valid[name])

        def check(callback, epoch, logs):
            # The center is in the model, and evaluate() in a callback disturbs nobody.
            for name, value in zip(names, callback.model.evaluate(xv, yv, verbose=0)):
                assert abs(logs["val_" + name] - float(value)) < 1e-6, (name, logs, value)

        watch = Watch(epoch_end=check)
        model = dense(optimizer=keras.optimizers.SGD(0.5), metrics=metrics())
        history = model.fit(*shard(x, y), validation_data=shard(xv, yv), epochs=3, batch_size=8, verbose=0,
                            callbacks=distribute([watch], rule=EASGD(), every_n_batches=2)).history
        for name in ["loss", "val_loss", "val_auc"]:
            assert history[name] == [logs[name] for logs in watch.logs]
        assert watch.logs[-1]["loss"] < watch.logs[0]["loss"]
        assert (everyones(flat(model.get_weights())) == flat(model.get_weights())).all()
        worker.report({f"val_loss {rank}": watch.logs[-1]["val_loss"]})
        """,
        workers=3,
    ).require_success()
    assert len({outcome.reported[f"val_loss {rank}"] for rank in range(3)}) == 1
    assert outcome.reported["val_loss"] == outcome.reported["val_loss 0"]


def test_weights_follow_the_rule_and_writes_in_mid_epoch_count(run_keras):
    """EASGD keeps the sum of all weights and the center; callbacks move the weights of each worker otherwise."""
    run_keras(
        """
        x, y = data(64)
        start = flat(dense().get_weights())

        def push(callback, batch):
            if callback.batches == 2:
                callback.model.set_weights([w + rank + 1 for w in callback.model.get_weights()])

        def compare(callback, epoch):
            if epoch:
                worker.barrier("before")
                own = flat(callback.model.get_weights())
                with worker.center_params():
                    center = flat(callback.model.get_weights())
                worker.barrier("after")
                total = everyones(own).sum(axis=0) + center
                assert abs(total - (size + 1) * start - 3).max() < 1e-4, abs(total - (size + 1) * start).max()
                # One worker may happen to be where the center is. Not both: whatever the order, the weights of rank 1
                # stay 0.3 and more above the center, and a worker that takes the center over has no distance to it.
                assert abs(everyones(own) - center).max() > 0.3

        model = dense(optimizer=keras.optimizers.SGD(0.0))
        model.fit(*shard(x, y), epochs=3, batch_size=8, verbose=0, callbacks=distribute(
            [Watch(batch_end=push, epoch_begin=compare)], rule=EASGD(0.05), every_n_batches=1))
        everyone = everyones(flat(model.get_weights()))
        assert (everyone == everyone[0]).all()
        assert (everyone[0] > start + 0.2).all()
        """
    ).require_success()


def test_the_period_begins_anew_with_each_epoch(run_keras):
    run_keras(
        """
        watch, seen, original = Watch(), [], worker.sync_params
        worker.sync_params = lambda *args, **kwargs: seen.append(watch.batches) or original(*args, **kwargs)
        model = dense(optimizer=keras.optimizers.SGD(0.0))
        model.fit(*shard(*data(48)), batch_size=8, epochs=3, verbose=0,
                  callbacks=distribute([watch], every_n_batches=2))
        assert seen == [2, 3, 5, 6, 8, 9], seen  # after two batches, and at the end of an epoch of three
        """
    ).require_success()


def test_statistics_are_averaged_and_random_layers_differ(run_keras):
    run_keras(
        """
        x, y = data(90)
        layers = [L.BatchNormalization(name="bn"), L.Dropout(0.5, name="drop")]
        model = dense(optimizer=keras.optimizers.SGD(0.1), extra=layers)
        start = model.get_weights()

        ones = np.ones((4, 8), "float32")
        masks = []

        def mask():
            if not KERAS_2:
                return keras.ops.convert_to_numpy(model.get_layer("drop")(ones, training=True))
            K, layer = keras.backend, model.get_layer("drop")
            return K.function([layer.input, K.learning_phase()], [layer.output])([ones, 1])[0]

        def statistics():
            return flat(model.get_layer("bn").get_weights()[2:])

        def local(callback, batch):
            callback.model
            callback.own = statistics()

        def check(callback, epoch, logs):
            everyone = everyones(callback.own)
            assert abs(everyone[0] - everyone[1]).max() > 1e-3
            assert abs(statistics() - everyone.mean(axis=0)).max() < 1e-6
            masks[:] = everyones(mask())

        watch = Watch(batch_end=local, epoch_end=check)
        callbacks = distribute([watch], rule=EASGD())
        model.fit(*shard(x, y), epochs=2, batch_size=10, verbose=0, callbacks=callbacks)
        assert (everyones(statistics()) == statistics()).all()
        draws = [np.random.rand(3)]
        if not KERAS_2 and keras.backend.backend() == "torch":
            import torch
            draws.append(torch.rand(3).numpy())
        if not KERAS_2 and keras.backend.backend() == "tensorflow":
            import tensorflow as tf
            draws.append(tf.random.uniform([3]).numpy())
        for draw in draws:  # what the script draws next, to split its data maybe, is the same everywhere
            assert (everyones(draw) == everyones(draw)[0]).all()

        if not KERAS_2:
            seeds = [v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")]
            assert seeds
            states = everyones([np.asarray(keras.ops.convert_to_numpy(v)) for v in seeds])
            assert (states[0, :, 0] != states[1, :, 0]).all()
            if keras.backend.backend() != "torch":  # which draws masks from its own generator
                assert (states[:, :, 1] >= 10).all(), states  # one draw a batch, never averaged
        assert (masks[0] != masks[1]).any()
        assert set(np.unique(masks)) == {0.0, 2.0}
        """
    ).require_success()


def test_noise_without_a_seed_differs_between_workers_and_fits(run_keras):
    """As the noise of a VAE or a GAN, `keras.random.normal(shape)`; what the script draws next is the same again."""
    run_keras(
        """
        backend = keras.backend.backend()

        class Noise(L.Layer):
            def call(self, x):
                if KERAS_2:
                    return x + keras.backend.random_normal(keras.backend.shape(x))
                if backend == "jax":  # which allows no other
                    return x
                return x + keras.random.normal(keras.ops.shape(x))

        def draw():
            draws = [np.random.rand()]
            if not KERAS_2:
                draws.append(float(keras.ops.convert_to_numpy(keras.random.normal(()))))
            if backend == "torch":
                import torch
                draws.append(float(torch.rand(())))
            if backend == "tensorflow":
                import tensorflow as tf
                draws.append(float(tf.random.normal(())))
            return draws

        class Note(keras.callbacks.Callback):
            losses, draws = [], []
            def on_train_batch_end(self, batch, logs=None):
                self.losses.append(float(logs["loss"]))
                self.draws.append(np.random.rand())

        x = np.zeros((32, 6), "float32")
        model = dense(extra=[Noise()], optimizer=keras.optimizers.SGD(0.0), metrics=())
        np.random.seed(6) if KERAS_2 else keras.utils.set_random_seed(6)
        between = []
        for fit in range(3):
            model.fit(x, x[:, :3] + 1, batch_size=8, verbose=0, callbacks=distribute([Note()]))
            drawn = everyones(draw())
            assert (drawn == drawn[0]).all(), drawn
            between += drawn[0].tolist()
        assert len(set(between)) == 3 * len(draw()), between  # a script draws other numbers after each fit
        for numbers in (Note.draws, *([Note.losses] if backend != "jax" else [])):
            assert len(set(everyones(numbers).ravel())) == 3 * 4 * size, everyones(numbers)
        """
    ).require_success()


def test_frozen_weights_are_not_sent_unless_they_change(run_keras):
    run_keras(
        """
        x, y = data(64)
        sent = []
        plain = worker.advanced.sum_arrays

        def sum_arrays(name, arrays, *rest, **options):
            sent.append((name, sum(np.size(array) for array in arrays)))
            return plain(name, arrays, *rest, **options)

        worker.advanced.sum_arrays = sum_arrays
        layers = [L.BatchNormalization(name="bn"), L.Dense(500, trainable=False, name="frozen")]
        model = dense(extra=layers, optimizer=keras.optimizers.SGD(0.1))
        kernel, bias = (everyones(w)[0] for w in model.get_layer("frozen").get_weights())  # rank 0's count

        def change(callback, batch):
            if rank == 1 and len(callback.epochs) == 1 and batch == 0:  # as a step that trains a second model may
                model = callback.model
                model.set_weights([w + 1 if w.shape == bias.shape else w for w in model.get_weights()])

        watch = Watch(batch_end=change, epoch_end=lambda callback, epoch, logs: sent.append((epoch, 0)))
        model.fit(*shard(x, y), epochs=3, batch_size=8, verbose=0, callbacks=distribute([watch], rule=EASGD()))
        ends = [sent.index((epoch, 0)) for epoch in range(3)]
        for first, last, most in ((0, ends[0], 100), (ends[0], ends[1], 700), (ends[1], ends[2], 100)):
            assert max(size for _, size in sent[first:last]) < most, sent[first:last]
        now = model.get_layer("frozen").get_weights()
        assert (now[0] == kernel).all()
        np.testing.assert_allclose(now[1], bias + 0.5)
        statistics = flat(model.get_layer("bn").get_weights()[2:])
        assert (everyones(statistics) == statistics).all()
        assert abs(statistics[:8]).max() > 0.01
        """
    ).require_success()


@pytest.mark.slow
def test_writers_write_once_what_the_center_is_and_stopping_keeps_the_best(run_keras, tmp_path):
    script = """
        folder = sys.argv[1]
        x, y = data(90)
        xv, yv = data(31, seed=1)
        path = os.path.join(folder, f"rank{rank}" + (".h5" if KERAS_2 else ".keras"))
        model = dense(optimizer=keras.optimizers.SGD(0.5, momentum=0.9))
        seen = []

        def note(callback, epoch, logs):
            seen.append((logs["val_loss"], flat(callback.model.get_weights())))
            logs["falling then rising"] = abs(epoch - 1)

        callbacks = [
            Watch(epoch_end=note),
            keras.callbacks.ModelCheckpoint(path, monitor="val_loss", verbose=1),
            keras.callbacks.CSVLogger(os.path.join(folder, f"rank{rank}.csv")),
            keras.callbacks.ReduceLROnPlateau(monitor="falling then rising", patience=1, factor=0.5, min_delta=0,
                                              mode="min"),
            keras.callbacks.EarlyStopping(monitor="falling then rising", patience=3, restore_best_weights=True,
                                          mode="min", verbose=1),
        ]
        model.fit(*shard(x, y), validation_data=shard(xv, yv), epochs=9, batch_size=8, verbose=1,
                  callbacks=distribute(callbacks, rule=EASGD(), every_n_batches=2))
        assert len(seen) == 5, len(seen)
        assert (flat(model.get_weights()) == seen[1][1]).all()
        everyone = everyones(seen[-1][1])
        assert (everyone == everyone[0]).all()
        if rank == 0:
            np.savez(os.path.join(folder, "expected.npz"), x=xv, y=dense_prediction(seen[-1][1], model, xv))
        """
    helper = """
def dense_prediction(values, model, x):
    weights, start = [], 0
    for like in model.get_weights():
        weights.append(values[start:start + like.size].reshape(like.shape))
        start += like.size
    hidden = np.tanh(x @ weights[0] + weights[1])
    scores = np.exp(hidden @ weights[2] + weights[3])
    return scores / scores.sum(axis=1, keepdims=True)
"""
    import textwrap

    outcome = run_keras(helper + textwrap.dedent(script)).require_success()
    suffix = "h5" if KERAS_2 else "keras"
    written = {path.name for path in tmp_path.iterdir() if path.name.startswith("rank") and path.suffix != ".log"}
    assert written == {f"rank0.{suffix}", "rank0.csv"}
    assert "Epoch 1/9" in outcome.logs[0]
    assert "Epoch" not in outcome.logs[1]
    assert "loss:" not in outcome.logs[1]
    # The checkpoint opens where this package is not installed, and holds the center.
    alone = """
import sys
class Refuse:
    def find_spec(self, name, *rest):
        if name == "platoon_plugins" or name.startswith("platoon_plugins."):
            raise ImportError("loading a model must not need this package")
if sys.argv[3] == "2":
    from platoon_base import compat
    compat.apply()
sys.meta_path.insert(0, Refuse())
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
expected = np.load(sys.argv[2])
assert abs(model.predict(expected["x"], verbose=0) - expected["y"]).max() < 1e-5
assert type(model.optimizer).__name__ == "SGD"
"""
    command = [sys.executable, "-c", alone, tmp_path / f"rank0.{suffix}", tmp_path / "expected.npz", "23"[not KERAS_2]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_model_with_a_distributed_optimizer_loads_without_this_package(run_keras, tmp_path):
    run_keras(
        """
        import subprocess
        x, y = data(64)
        path = os.path.join(sys.argv[1], "model" + (".h5" if KERAS_2 else ".keras"))
        optimizer = DistributedOptimizer("adam")
        assert type(optimizer).__name__ == "Adam"
        config = DistributedOptimizer(keras.optimizers.SGD(0.1)).get_config()
        assert config["momentum"] == 0.0 and config.get("name") in (None, "distributed_SGD", "distributed_sgd")
        model = dense(optimizer=optimizer)
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
        if rank == 0:
            model.save(path)
            code = (
                "import sys; from platoon_base import compat; compat.apply(); sys.modules['platoon_plugins'] = None;"
                "import keras; model = keras.models.load_model(sys.argv[1]);"
                "assert type(model.optimizer).__module__.startswith('keras'), type(model.optimizer).__module__;"
                "import numpy as np; n = model.optimizer.iterations;"
                "n = n.get_value() if hasattr(n, 'get_value') else keras.ops.convert_to_numpy(n);"
                "assert int(n) == 4, n"
            )
            subprocess.run([sys.executable, "-c", code, path], check=True, timeout=200)
        """,
    ).require_success()


@needs_keras_3
def test_training_resumes_at_the_right_epoch_on_every_worker(run_keras, tmp_path):
    script = """
        folder, crash = sys.argv[1], sys.argv[2:] == ["crash"]
        x, y = data(64)
        model = dense(optimizer=keras.optimizers.Adam(0.05))
        begins = []

        def fail(callback, epoch):
            begins.append((epoch, flat(callback.model.get_weights())))
            if crash and epoch == 2:
                os._exit(3)

        callbacks = [keras.callbacks.BackupAndRestore(os.path.join(folder, f"backup{rank}")), Watch(epoch_begin=fail)]
        model.fit(*shard(x, y), epochs=4, batch_size=8, verbose=0, callbacks=distribute(callbacks, every_n_batches=2))
        first = everyones([float(begins[0][0]), float(model.optimizer.iterations.numpy()
                          if hasattr(model.optimizer.iterations, "numpy") else model.optimizer.iterations.value)])
        assert (first[:, 0] == 2).all(), first
        assert (first[:, 1] == 16).all(), first
        starts = everyones(begins[0][1])
        assert (starts == starts[0]).all()
        assert abs(starts[0] - flat(dense().get_weights())).max() > 0.01
        """
    crashed = run_keras(script, args=["crash"])
    assert crashed.result.status == 3, crashed.logs
    assert sorted(path.name for path in tmp_path.glob("backup*")) == ["backup0"]
    run_keras(script).require_success()
    assert not list(tmp_path.glob("backup*"))  # Keras removes it at the end


@needs_keras_3
def test_a_checkpoint_in_the_middle_of_an_epoch_is_the_center(run_keras, tmp_path):
    run_keras(
        """
        x, y = data(64)
        path = os.path.join(sys.argv[1], "b{batch}.weights.h5")

        def push(callback, batch):
            if callback.batches == 1:
                callback.model.set_weights([w + 1 + rank for w in callback.model.get_weights()])

        model = dense(optimizer=keras.optimizers.SGD(0.0))
        start = flat(model.get_weights())
        # Rank 1 must not come to the end of its epoch, and move the center, before rank 0 has saved it.
        wait = Watch(batch_end=lambda callback, batch: batch == 3 and worker.barrier("saved by rank 0"))
        checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=3)
        callbacks = [Watch(batch_end=push), checkpoint, wait]
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(callbacks, every_n_batches=100))
        worker.barrier("saved")
        if rank == 0:
            (name,) = [name for name in os.listdir(sys.argv[1]) if name.endswith(".h5")]
            other = dense()
            other.load_weights(os.path.join(sys.argv[1], name))
            assert (flat(other.get_weights()) == start).all()
        """,
    ).require_success()


@pytest.mark.slow
def test_sequences_of_batches_train_and_evaluate_exactly(run_keras):
    run_keras(
        """
        Base = keras.utils.Sequence if KERAS_2 else keras.utils.PyDataset

        class Batches(Base):
            def __init__(self, x, y):
                super().__init__()
                self.x, self.y, self.order = x, y, np.arange(len(x))
            def __len__(self):
                return -(-len(self.x) // 8)
            def __getitem__(self, i):
                rows = self.order[8 * i:8 * i + 8]
                return self.x[rows], self.y[rows]
            def on_epoch_end(self):
                np.random.shuffle(self.order)

        x, y = data(77)
        xv, yv = data(45, seed=1)
        for averaged in (False, True):
            sgd = keras.optimizers.SGD(0.0)
            model = dense(optimizer=DistributedOptimizer(sgd) if averaged else sgd)
            watch = Watch()
            fit = model.fit_generator if KERAS_2 else model.fit
            fit(shard(Batches(x, y)), validation_data=shard(Batches(xv, yv)), epochs=3, verbose=0,
                callbacks=distribute([watch]), shuffle=False)
            assert watch.batches == 3 * 4
            one, valid = dense().evaluate(x, y, verbose=0), dense().evaluate(xv, yv, verbose=0)
            for logs in watch.logs:
                got = [logs[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")]
                assert abs(np.array(got) - [*one, *valid]).max() < 1e-6, (got, one, valid)
        """,
        workers=3,
    ).require_success()


@pytest.mark.slow
def test_models_of_all_sorts(run_keras):
    """Several outputs, weights of samples, no metrics; losses and metrics stay those of all the data.

    Batches are full: on TensorFlow and Keras 2 the loss of each output is Keras's own mean over batches, not rows.
    """
    run_keras(
        """
        x, y = data(48)
        other = x[:, :1] * 2
        weights = np.linspace(0, 2, 48).astype("float32")

        def build(optimizer):
            np.random.seed(5)
            if not KERAS_2:
                keras.utils.set_random_seed(5)
            start = keras.layers.Input((6,)) if KERAS_2 else keras.Input((6,))
            hidden = L.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.l2(0.01), name="h")(start)
            model = keras.models.Model(start, [L.Dense(3, activation="softmax", name="a")(hidden),
                                               L.Dense(1, name="b")(hidden)])
            model.compile(optimizer, loss={"a": "categorical_crossentropy", "b": "mse"},
                          metrics={"a": ["accuracy"], "b": ["mae"]})
            return model

        for averaged in (False, True):
            sgd = keras.optimizers.SGD(0.0)
            model = build(DistributedOptimizer(sgd) if averaged else sgd)
            watch = Watch()
            mine, labels, others, scale = shard(x, y, other, weights)
            callbacks = distribute([watch])
            scales = {"a": scale, "b": scale} if KERAS_2 else [scale, scale]
            for fit in range(2):  # the same list again
                model.fit(mine, [labels, others], sample_weight=scales, validation_data=(mine, [labels, others]),
                          batch_size=8, verbose=0, callbacks=callbacks)
            scales = {"a": weights, "b": weights} if KERAS_2 else [weights, weights]
            one = build("sgd")
            names = one.metrics_names if KERAS_2 else None
            weighted = one.evaluate(x, [y, other], sample_weight=scales, batch_size=8, verbose=0, **({} if KERAS_2 else
                                    {"return_dict": True}))
            plain = one.evaluate(x, [y, other], batch_size=8, verbose=0, **({} if KERAS_2 else {"return_dict": True}))
            if KERAS_2:
                weighted, plain = dict(zip(names, weighted)), dict(zip(names, plain))
            assert len(watch.logs) == 2 and len(plain) >= 5
            for logs in watch.logs:
                for name, value in weighted.items():
                    assert abs(logs[name] - value) < 2e-6, (name, logs[name], value)
                for name, value in plain.items():
                    assert abs(logs["val_" + name] - value) < 2e-6, (name, logs["val_" + name], value)

        if not KERAS_2:
            f1 = dense(metrics=[keras.metrics.F1Score()])
            f1.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
            (scores,) = f1.history.history["f1_score"]
            assert scores.shape == (3,)
            assert (everyones(scores) == scores).all()

        bare = dense(metrics=())
        bare.fit(*shard(x, y), epochs=2, batch_size=8, verbose=0, callbacks=distribute())
        assert set(bare.history.history) == {"loss"}
        """
    ).require_success()


@needs_keras_3
def test_ways_to_run_a_step(run_keras):
    run_keras(
        """
        x, y = data(96)
        backend = keras.backend.backend()
        ways = [{"run_eagerly": True}] + ([] if backend == "torch" else [{"steps_per_execution": 4}])
        for options in ways:
            for averaged in (False, True):
                sgd = keras.optimizers.SGD(0.1)
                model = dense(optimizer=DistributedOptimizer(sgd) if averaged else sgd, **options)
                watch = Watch(batch_end=lambda callback, batch: rank == len(callback.epochs) == 1 and stop(callback))
                callbacks = distribute([watch], every_n_batches=3)
                model.fit(*shard(x, y), epochs=4, batch_size=4, verbose=0, callbacks=callbacks)
                assert watch.epochs == [0, 1]
                everyone = everyones(flat(model.get_weights()))
                assert (everyone == everyone[0]).all()
                one = dense(optimizer=keras.optimizers.SGD(0.1)).evaluate(x, y, verbose=0)
                assert min(logs["loss"] for logs in watch.logs) < one[0]

        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**10)
        model = dense(optimizer=DistributedOptimizer(scaled))
        model.fit(*shard(x, y), epochs=1, batch_size=4, shuffle=False, verbose=0, callbacks=distribute())
        plain = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1)))
        plain.fit(*shard(x, y), epochs=1, batch_size=4, shuffle=False, verbose=0, callbacks=distribute())
        everyone = everyones(flat(model.get_weights()))
        assert (everyone == everyone[0]).all()
        assert abs(everyone[0] - flat(dense().get_weights())).max() > 0.01

        # A power of two is taken in and out of a float32 without a trace.
        assert abs(everyone[0] - flat(plain.get_weights())).max() < 1e-6
        everyone = everyones(flat(plain.get_weights()))
        assert (everyone == everyone[0]).all()

        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.out = L.Dense(3)
            def call(self, x):
                return self.out(x)
            def train_step(self, *args):
                logs = {"loss": keras.ops.zeros(())}
                return (logs, args[0]) if backend == "jax" else logs

        careless = Mine()
        careless(x[:2])
        careless.compile(DistributedOptimizer("sgd"), loss="mse")
        inner = DistributedOptimizer(keras.optimizers.SGD(0.1))
        wrong = dense(optimizer=keras.optimizers.MultiOptimizer(lambda variable: inner))
        unbuilt = keras.Sequential([L.Dense(3)])
        unbuilt.compile("sgd", "mse")
        for model, complaint in [(wrong, "other way round"), (careless, "were not averaged")] + (
                [(unbuilt, "put keras.Input")] if backend == "tensorflow" else []):
            try:
                model.fit(*shard(x, y), verbose=0, callbacks=distribute())
            except PlatoonError as exc:
                assert complaint in str(exc)
            else:
                raise AssertionError
        if backend != "tensorflow":
            unbuilt.fit(*shard(x, y), verbose=0, callbacks=distribute())
            everyone = everyones(flat(unbuilt.get_weights()))
            assert (everyone == everyone[0]).all()
        """
    ).require_success()


@pytest.mark.slow
def test_a_loop_over_train_on_batch(run_keras):
    run_keras(
        """
        from platoon_plugins.keras import broadcast_variables
        x, y = data(160)
        alone = dense(optimizer=keras.optimizers.SGD(0.5, momentum=0.9))
        model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.9)))
        if rank:
            model.set_weights([w + 1 for w in model.get_weights()])
        uncompiled = keras.Sequential([L.Dense(3, input_shape=(6,))] if KERAS_2 else [keras.Input((6,)), L.Dense(3)])
        fit = lambda model: model.fit(x, y, verbose=0, callbacks=distribute())
        for call in (broadcast_variables, fit) if KERAS_2 else (fit,):
            try:
                call(uncompiled)
            except (PlatoonError, RuntimeError, ValueError) as exc:
                assert "compile" in str(exc)
            else:
                raise AssertionError
        if not KERAS_2:  # as in a loop with an optimizer of torch
            uncompiled.set_weights([w + rank for w in uncompiled.get_weights()])
            before = everyones(flat(uncompiled.get_weights()))
            broadcast_variables(uncompiled)
            assert (flat(uncompiled.get_weights()) == before[0]).all() and (before[0] != before[1]).all()
            if keras.backend.backend() == "torch":
                weight = uncompiled.trainable_weights[0].value
                weight.grad = __import__("torch").full_like(weight, rank)
                worker.all_reduce(weight.grad, "mean", dest=weight.grad)
                assert (weight.grad == 0.5).all()
            unbuilt = keras.Sequential([L.Dense(3)])
            try:
                broadcast_variables(unbuilt)
            except PlatoonError as exc:
                assert "call model.build" in str(exc), exc
            else:
                raise AssertionError
        broadcast_variables(model)
        mine, labels = shard(x, y)
        for k in range(10):
            alone.train_on_batch(x[16 * k:16 * k + 16], y[16 * k:16 * k + 16])
            model.train_on_batch(mine[8 * k:8 * k + 8], labels[8 * k:8 * k + 8])
        assert abs(flat(alone.get_weights()) - flat(model.get_weights())).max() < 1e-5
        """
    ).require_success()
