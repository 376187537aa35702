"""Keras fits in which something is uneven, ends early, or goes wrong, on every back end that is installed."""

import json
from pathlib import Path

import pytest
from keras_here import KERAS_2, both_ways, keras

from platoon_base.errors import ConfigurationError

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]


@both_ways
@pytest.mark.slow
def test_a_stop_of_one_is_a_stop_of_all(run_keras):
    """In the middle of an epoch and at its end, by each policy, with unequal numbers of batches, with and without
    validation.
    """
    run_keras(
        """
        import time
        x, y = data(40)
        xv, yv = data(20, seed=1)

        def fit(when, policy="any", averaged=False, rows=(40, 56), **options):
            optimizer = keras.optimizers.SGD(0.1)
            model = dense(optimizer=DistributedOptimizer(optimizer) if averaged else optimizer)
            x, y = data(rows[rank])
            at_batch = lambda callback, batch: when(len(callback.epochs), batch) and stop(callback)
            at_epoch = lambda callback, epoch, logs: when(epoch, None) and stop(callback)
            watch = Watch(batch_end=at_batch, epoch_end=at_epoch)
            callbacks = distribute([watch], policy=policy, every_n_batches=2)
            model.fit(x, y, epochs=6, batch_size=8, verbose=0, callbacks=callbacks, **options)
            counts = everyones([len(watch.epochs), watch.batches, len(watch.logs[-1])])
            assert (counts[:, 0] == counts[0, 0]).all(), counts
            assert (counts[:, 2] == counts[0, 2]).all(), counts
            everyone = everyones(flat(model.get_weights()))
            assert (everyone == everyone[0]).all()
            # Votes that travel with gradients on a GPU are seen a step later, so that no step waits for it.
            late = getattr(getattr(model.optimizer, "gradient_average", None), "on_device", False)
            return [int(n) for n in counts[:, 0]][0], [int(n) - late for n in counts[:, 1]]

        valid = {"validation_data": (xv, yv)}
        for averaged in (False, True):
            # Rank 1 stops at the end of epoch 1.
            assert fit(lambda epoch, batch: rank == 1 and epoch == 1 and batch is None, averaged=averaged,
                       **valid)[0] == 2
            # Rank 1 stops in the middle of epoch 1: its own batches end there, those of rank 0, which waits for its
            # vote in the same batch, within one more; synchronous ones after the next, with which the vote comes.
            def third_of_epoch_1(epoch, batch):
                if (epoch, batch) == (1, 2) and not averaged:
                    worker.barrier("third batch")
                    deadline = time.monotonic() + 60
                    while rank == 0 and not worker.advanced.stop_votes.voters():
                        assert time.monotonic() < deadline
                return rank == 1 and (epoch, batch) == (1, 2)

            epochs, batches = fit(third_of_epoch_1, averaged=averaged)
            assert epochs == 2
            assert batches == [5 + 4, 7 + 4] if averaged else batches in ([5 + 3, 7 + 3], [5 + 4, 7 + 3]), batches
            # At the last batch of the epoch, behind which validation begins.
            assert fit(lambda epoch, batch: rank == 1 and (epoch, batch) == (1, 6), averaged=averaged, **valid)[0] in (
                (2,) if averaged else (2, 3))
            if not averaged:  # a NaN of one ends the fit for all, and reaches nobody
                x_of_1 = x * np.nan if rank else x
                model = dense(optimizer=keras.optimizers.SGD(0.1))
                watch = Watch()
                model.fit(x_of_1, y, epochs=3, batch_size=8, verbose=0, callbacks=distribute(
                    [watch, keras.callbacks.TerminateOnNaN()], every_n_batches=100))
                assert watch.epochs == [0]
                assert np.isfinite(flat(model.get_weights())).all()
            # Validation every second epoch only.
            assert fit(lambda epoch, batch: rank == 0 and epoch == 2 and batch is None, averaged=averaged,
                       validation_freq=2, **valid)[0] == 3
            # All: rank 0 after epoch 1, rank 1 after epoch 3.
            at_end = lambda *epochs: lambda epoch, batch: batch is None and epoch == epochs[rank]
            assert fit(at_end(1, 3), "all", averaged=averaged)[0] == 4
            # Leader: rank 1 is not asked.
            assert fit(at_end(2, 0), "leader", averaged=averaged)[0] == 3
        """
    ).require_success()


def test_a_job_that_stops_ends_the_fit_for_all_whatever_the_policy(run_keras):
    run_keras(
        """
        x, y = data(32)
        ask = lambda callback, epoch, logs: epoch == 1 and rank == 1 and worker.request_stop("enough")
        watch = Watch(epoch_end=ask)
        dense().fit(*shard(x, y), epochs=5, batch_size=8, verbose=0, callbacks=distribute([watch], policy="leader"))
        assert watch.epochs == [0, 1], watch.epochs
        """
    ).require_success()


def test_a_vote_does_not_need_those_who_have_ended_their_epoch(run_keras):
    """With averaged gradients: rank 0 has no batch left, so rank 1 is all there are, and leads them."""
    run_keras(
        """
        from platoon_plugins.keras.gradients import Batch, GradientAverage
        from platoon_plugins.keras.model_averages import ModelAverages

        for policy in ("all", "leader"):
            member = GradientAverage(worker)
            average = ModelAverages([member])
            average.attach(policy, [np.zeros(2, "float32")])
            if rank:
                average.vote()
                member.average(Batch([np.ones(2, "float32")], 1.0, [True]))
                assert average.stops, policy
            assert average.join() == [0, 1]
        """
    ).require_success()


@both_ways
@pytest.mark.slow
def test_averaged_gradients_with_unequal_numbers_of_batches(run_keras):
    """Those that have no batch left wait and catch up: no rank hangs, and all end with the same weights."""
    run_keras(
        """
        x, y = data((24, 80, 40)[rank])
        model = dense(optimizer=DistributedOptimizer(keras.optimizers.Adam(0.01)))
        watch = Watch()
        model.fit(x, y, epochs=3, batch_size=8, verbose=0, callbacks=distribute([watch]))
        assert watch.batches == 3 * (3, 10, 5)[rank]
        everyone = everyones(flat(model.get_weights()))
        assert (everyone == everyone[0]).all()
        assert abs(everyone[0] - flat(dense().get_weights())).max() > 0.05
        variables = model.optimizer.get_weights() if KERAS_2 else [
            keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]
        moments = everyones(flat(variables))
        assert (moments == moments[0]).all()
        """,
        workers=3,
    ).require_success()


@pytest.mark.slow
def test_several_fits_of_one_script(run_keras):
    """Other trainable weights, other models, another rule, after a stop and after an interrupted fit."""
    run_keras(
        """
        x, y = data(64)
        model = dense(optimizer=keras.optimizers.SGD(0.2))
        watch = Watch(epoch_end=lambda callback, epoch, logs: stop(callback))
        model.fit(*shard(x, y), epochs=5, batch_size=8, verbose=0, callbacks=distribute([watch]))
        assert watch.epochs == [0]
        model.get_layer("hidden").trainable = False
        model.compile("sgd", loss="categorical_crossentropy", metrics=["accuracy"])
        before = model.get_weights()
        watch = Watch()
        model.fit(*shard(x, y), epochs=2, batch_size=8, verbose=0, callbacks=distribute([watch], rule=ASGD()))
        assert watch.epochs == [0, 1]
        after = model.get_weights()
        assert (before[0] == after[0]).all()
        assert (before[2] != after[2]).any()

        class Mine(Exception):
            pass

        def fail(callback, batch):
            if callback.batches == 3:
                raise Mine

        for fold in range(2):
            other = dense(units=(5 + fold, 3))
            try:
                other.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute([Watch(batch_end=fail)]))
            except Mine:
                pass
            else:
                raise AssertionError
        last = dense(units=(4, 3), optimizer=DistributedOptimizer("sgd"))
        last.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
        everyone = everyones(flat(last.get_weights()))
        assert (everyone == everyone[0]).all()
        """
    ).require_success()


@pytest.mark.slow
def test_what_cannot_work_is_refused_on_every_worker(run_keras):
    outcome = run_keras(
        """
        x, y = data(32)

        def refused(what, **options):
            model, callbacks = options.pop("model"), options.pop("callbacks")
            try:
                model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=callbacks, **options)
            except PlatoonError as exc:
                worker.report({f"{what} {rank}": f"{type(exc).__name__}: {exc}"})
                worker.barrier(what)  # which lets late joiners through
            else:
                raise AssertionError(what)

        averaged = lambda: dense(optimizer=DistributedOptimizer("sgd"))
        refused("both", model=averaged(), callbacks=distribute(rule=EASGD()))
        refused("neither", model=dense(), callbacks=distribute(rule=None))
        refused("other model", model=dense(units=(8 + rank, 3)), callbacks=distribute())
        refused("other options", model=dense(), callbacks=distribute(every_n_batches=10 + rank))
        refused("other mode", model=averaged() if rank else dense(), callbacks=distribute())

        class Highest(keras.metrics.Metric):
            def __init__(self, name="highest", **options):
                super().__init__(name=name, **options)
                self.value = self.add_weight(name="value", shape=(), initializer="ones")
            def update_state(self, y_true, y_pred, sample_weight=None):
                return [] if KERAS_2 else None
            def result(self):
                return self.value * 1.0
            def reset_state(self):
                self.value.assign(1.0)
            def reset_states(self):
                keras.backend.set_value(self.value, 1.0)

        refused("undeclared", model=dense(metrics=[Highest()]), callbacks=distribute())
        Highest.adds_up = True
        refused("metric", model=dense(metrics=[Highest()]), callbacks=distribute())

        class Share(keras.metrics.Mean):
            def update_state(self, y_true, y_pred, sample_weight=None):
                return super().update_state(y_pred[:, 0])

        dense(metrics=[Share()]).fit(*shard(x, y), verbose=0, callbacks=distribute())
        if not KERAS_2:
            class Raw(keras.Sequential):
                def get_metrics_result(self):
                    return {}
                def compute_metrics(self, x, y, y_pred, sample_weight=None):
                    return {"raw": keras.ops.mean(y_pred)}

            raw = Raw([keras.Input((6,)), L.Dense(3)])
            raw.compile("sgd", loss="mse")
            refused("raw", model=raw, callbacks=distribute())
        if keras.backend.backend() in ("tensorflow", "torch"):
            compiled = dense(optimizer=DistributedOptimizer("sgd"), jit_compile=True)
            refused("compiled", model=compiled, callbacks=distribute())

        if not KERAS_2:
            keras.config.set_dtype_policy("bfloat16")
            narrow = dense()
            keras.config.set_dtype_policy("float32")
            refused("bfloat16", model=narrow, callbacks=distribute())
        clipped = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1, clipnorm=0.1 * (rank + 1))))
        refused("other clipping", model=clipped, callbacks=distribute())
        refused("other metrics", model=dense(metrics=["mse" if rank else "mae"]), callbacks=distribute())
        refused("other epochs", model=dense(), callbacks=distribute(), epochs=2 + rank)
        refused("other loss weights", model=dense(loss_weights=[1.0 + rank]), callbacks=distribute())
        x_and_y = {"validation_data": (x, y)} if rank else {}
        refused("one evaluates", model=dense(), callbacks=distribute(), **x_and_y)
        if not KERAS_2:
            ema = dense(optimizer=keras.optimizers.SGD(0.1, use_ema=True))
            refused("average", model=ema, callbacks=distribute())
            optimizers = keras.optimizers
            scaled = dense(optimizer=optimizers.LossScaleOptimizer(optimizers.SGD(0.1, use_ema=True)))
            refused("average inside", model=scaled, callbacks=distribute())
            inner = {"hidden": optimizers.SGD(0.1, use_ema=True), "out": optimizers.SGD(0.1)}
            several = dense(optimizer=optimizers.MultiOptimizer(lambda v: inner[v.path.split("/")[-2]]))
            refused("average of several", model=several, callbacks=distribute())
            refused("schedule free", model=dense(optimizer=optimizers.ScheduleFreeAdamW()), callbacks=distribute())

        # What a fit of all workers has left.
        model = averaged()
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
        before = flat(model.get_weights())
        try:
            model.fit(x, y, batch_size=8, verbose=0)
        except Exception as exc:
            worker.report({f"alone {rank}": str(exc)})
        assert (flat(model.get_weights()) == before).all()
        path = os.path.join(sys.argv[1], f"model{rank}" + (".h5" if KERAS_2 else ".keras"))
        model.save(path)
        loaded = keras.models.load_model(path)
        if KERAS_2:
            refused("loaded", model=loaded, callbacks=distribute())
        trained = dense()
        trained.fit(x, y, batch_size=16, verbose=0)
        if not KERAS_2:
            refused("trained", model=trained, callbacks=distribute())
        loaded.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute(rule=EASGD()))
        loaded.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
        loaded.compile(DistributedOptimizer(loaded.optimizer), loss="categorical_crossentropy")
        loaded.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
        assert (everyones(flat(loaded.get_weights())) == flat(loaded.get_weights())).all()

        if rank == 0:  # one more worker joins, and trains from the start
            import subprocess
            environment = {name: value for name, value in os.environ.items() if name != "PLATOON_RANK"}
            code = open(__file__).read().split("averaged = lambda")[0]
            code += "refused('late', model=dense(), callbacks=distribute())"
            subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=200)
        """
    ).require_success()
    told = outcome.reported
    for rank in range(2):
        assert "kept together twice; pass rule=None" in told[f"both {rank}"]
        assert "compile with DistributedOptimizer" in told[f"neither {rank}"]
        assert told[f"other model {rank}"].startswith("LayoutMismatchError")
        assert told[f"other options {rank}"].startswith("LayoutMismatchError")
        assert "every_n_batches=1" in told[f"other options {rank}"]
        assert told[f"other mode {rank}"].startswith("LayoutMismatchError")
        assert "joined late" in told["late 2"]
        assert "distribute([...]) to each fit" in told[f"alone {rank}"]
        assert "that has made 2 steps" in told[f"{'loaded' if KERAS_2 else 'trained'} {rank}"]
        assert '"clipnorm": 0.1' in told[f"other clipping {rank}"]
        for what, words in (("metrics", "metrics=[mae]"), ("epochs", "epochs=3"), ("loss weights", "_weights=[2.0]")):
            assert told[f"other {what} {rank}"].startswith("LayoutMismatchError")
            assert words in told[f"other {what} {rank}"], told[f"other {what} {rank}"]
        assert "ranks [1] evaluate after epoch 1" in told[f"one evaluates {rank}"]
        assert "`adds_up = True`" in told[f"undeclared {rank}"]
        assert "does not start from zero" in told[f"metric {rank}"]
        if not KERAS_2:
            assert "let train_step update a metric" in told[f"raw {rank}"]
            for name in ("average", "average inside", "average of several"):
                assert "use_ema=True and a rule" in told[f"{name} {rank}"]
            assert "ScheduleFreeAdamW and a rule" in told[f"schedule free {rank}"]
            assert "weights stay float32" in told[f"bfloat16 {rank}"]
        if keras.backend.backend() in ("tensorflow", "torch"):
            assert "call model.compile(..., jit_compile=False)" in told[f"compiled {rank}"]


def test_a_sequence_that_each_worker_shuffles_otherwise_is_refused(run_keras):
    """By a generator of its own: at once, or at the end of an epoch."""
    outcome = run_keras(
        """
        Base = keras.utils.Sequence if KERAS_2 else keras.utils.PyDataset

        class Batches(Base):
            def __init__(self, rng, at_once=False):
                super().__init__()
                self.rng, self.order = rng, np.arange(64)
                if at_once:
                    self.on_epoch_end()
            def __len__(self):
                return 8
            def __getitem__(self, i):
                rows = self.order[8 * i:8 * i + 8]
                return np.random.rand(8, 2) + rows[:, None], rows
            def on_epoch_end(self):
                self.rng.shuffle(self.order)

        for rng in (np.random.default_rng(3), np.random):
            part = shard(Batches(rng))
            for epoch in range(3):
                rows = [row for i in range(len(part)) for row in part[i][1]]
                assert sorted(everyones(rows).ravel()) == list(range(64))
                part.on_epoch_end()

        # Labels may be varied with the inputs, or there are none: rows are the same, what is made of them is not.
        class Varied(Batches):
            def __getitem__(self, i):
                labels = super().__getitem__(i)[1] + np.random.default_rng().random()
                return labels if self.alone else (labels, labels)

        Varied.on_epoch_end = lambda self: np.random.shuffle(self.order)
        for Varied.alone in (False, True):
            part = shard(Varied(None))
            for epoch in range(3):
                batches = [part[i] if Varied.alone else part[i][1] for i in range(len(part))]
                assert sorted(everyones(np.floor(np.concatenate(batches))).ravel()) == list(range(64))
                part.on_epoch_end()
        for at_once in (False, True):
            worker.barrier("next")
            wrong = 0.0
            try:
                part = shard(Batches(np.random.default_rng(), at_once))
                part.on_epoch_end()
                part[0]
            except PlatoonError as exc:
                worker.report({f"error {at_once}": str(exc)})
                wrong = 1.0
            assert everyones([wrong]).sum() == 1, "only who comes later can know"
        """
    ).require_success()
    for number, at_once in enumerate((False, True)):
        told = outcome.reported[f"error {at_once}"]
        when = "as it was made" if at_once else "after its on_epoch_end (call 1 of its hooks)"
        assert f"the first batch of the Batches ({5 + number} of this script) in shard, {when}, differs" in told
        assert "the workers have its rows in different orders" in told


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["'auto'", "DiLoCo(0.5, 0.5)"])
def test_a_fit_with_a_rule_goes_on_without_a_worker_that_is_killed(run_keras, rule):
    outcome = run_keras(
        f"""
        import signal
        from platoon_plugins.keras import DiLoCo
        x, y = data(60)

        def die(callback, batch):
            if rank == 1 and callback.batches == 6:
                os.kill(os.getpid(), signal.SIGKILL)

        watch = Watch(batch_end=die)
        model = dense(optimizer=keras.optimizers.SGD(0.2))
        model.fit(*shard(x, y), validation_data=shard(x, y), epochs=4, batch_size=5, verbose=0,
                  callbacks=distribute([watch], rule={rule}, every_n_batches=1))
        norm = float(abs(flat(model.get_weights())).sum())
        again = dense(optimizer=keras.optimizers.SGD(0.2))
        if rank:
            again.set_weights([w + 1 for w in again.get_weights()])
        at_begin = []
        watch_again = Watch(epoch_begin=lambda callback, epoch: at_begin.append(flat(again.get_weights())))
        again.fit(*shard(x, y), batch_size=5, verbose=0, callbacks=distribute([watch_again]))
        assert (at_begin[0] == flat(dense().get_weights())).all()
        worker.report({{f"epochs {{rank}}": len(watch.epochs), f"weights {{rank}}": norm,
                       f"val_loss {{rank}}": watch.logs[-1]["val_loss"]}})
        """,
        workers=3,
    )
    assert outcome.result.status != 0  # a killed worker is no success
    assert outcome.reported["epochs 0"] == outcome.reported["epochs 2"] == 4, outcome.logs
    assert outcome.reported["weights 0"] == outcome.reported["weights 2"]
    assert outcome.reported["val_loss 0"] == outcome.reported["val_loss 2"]


@pytest.mark.parametrize("rule", ["'auto'", "DiLoCo(0.5, 0.5)"])
def test_a_fit_whose_worker_is_killed_goes_on_from_the_checkpoint(platoon, write_script, tmp_path, rule):
    preamble = (Path(__file__).parents[1] / "helpers" / "keras_preamble.py").read_text()
    script = write_script(
        preamble
        + f"""
import signal
from platoon_plugins.keras import DiLoCo
x, y = data(60)
rule = {rule}
"""
        + """
failed = os.path.join(sys.argv[1], "failed")

def die(callback, epoch):
    if epoch == 3 and rank == 1 and not os.path.exists(failed):
        open(failed, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

at_begin = []
watch = Watch(epoch_begin=lambda callback, epoch: (at_begin.append(flat(model.get_weights())), die(callback, epoch)))
model = dense(optimizer=keras.optimizers.SGD(0.2))
model.fit(*shard(x, y), epochs=5, batch_size=5, verbose=0, callbacks=distribute([watch], rule=rule, every_n_batches=1))
new = bool((at_begin[0] == flat(dense().get_weights())).all())
worker.report({f"epochs {rank}": str(watch.epochs), f"new {rank}": int(new)})
"""
    )
    options = ["--max-restarts", 1, "--checkpoint-every", 1000, "--log-dir", "logs", "--summary", "s.json"]
    done = platoon("launch", "-n", 2, "-D", "cpu", *options, script, tmp_path)
    logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(2)]
    assert done.returncode == 0, done.stdout + "".join(logs)
    reported = json.loads((tmp_path / "s.json").read_text())
    assert reported["restarts"] == 1
    for rank in range(2):
        # The center is in the model; the last epoch of a worker that had not said yet that it was over is done again.
        assert reported[f"new {rank}"] == 0
        assert reported[f"epochs {rank}"] in ("[3, 4]", "[2, 3, 4]")
    assert reported["epochs 0"] == reported["epochs 1"]


def test_a_synchronous_fit_ends_everywhere_if_a_worker_is_killed(run_keras):
    outcome = run_keras(
        """
        import signal
        x, y = data(60)

        def die(callback, batch):
            if rank == 1 and callback.batches == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        model = dense(optimizer=DistributedOptimizer("sgd"))
        try:
            model.fit(*shard(x, y), epochs=4, batch_size=5, verbose=0, callbacks=distribute([Watch(batch_end=die)]))
        except PlatoonError as exc:
            worker.report({f"kind {rank}": type(exc).__name__, f"error {rank}": str(exc)})
        """,
    )
    assert outcome.result.status != 0
    assert outcome.reported["kind 0"] == "WorkerLostError"
    assert "rank 1" in outcome.reported["error 0"]


@pytest.mark.slow
def test_what_a_callback_does_on_one_rank_comes_to_all(run_keras):
    """With averaged gradients, weights and learning rates must stay the same on all workers."""
    outcome = run_keras(
        """
        x, y = data(64)

        def change(callback, epoch, logs):
            if rank == 1 and epoch == 1:
                callback.model.set_weights([w + 3 for w in callback.model.get_weights()])

        watch = Watch(epoch_end=change)
        model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.01)))
        model.fit(*shard(x, y), epochs=3, batch_size=8, verbose=0, callbacks=distribute([watch]))
        everyone = everyones(flat(model.get_weights()))
        assert (everyone == everyone[0]).all()
        assert (everyone[0] > flat(dense().get_weights()) + 2).all()

        rate = [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * (rank + 1))]
        model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.01)))
        model.fit(*shard(x, y), epochs=2, batch_size=8, verbose=0, callbacks=distribute(rate))
        everyone = everyones(flat(model.get_weights()))
        assert (everyone == everyone[0]).all()
        """
    ).require_success()
    assert "differ at the end of an epoch" in outcome.logs[0]


def test_a_fit_that_fails_before_it_shares_leaves_what_the_script_shares_alone(run_keras):
    run_keras(
        """
        model, (x, y) = dense((8 + rank, 3)), data(16)
        try:
            model.fit(x, y, verbose=0, callbacks=distribute([], rule=EASGD()))
        except PlatoonError:
            pass
        else:
            raise SystemExit("models of two sizes were taken")
        worker.init_shared_params([np.zeros(3)], EASGD())
        try:
            dense().fit(x, y, verbose=0, callbacks=distribute([], rule=EASGD()))
        except PlatoonError as error:
            assert "shares parameters by init_shared_params" in str(error), error
        else:
            raise SystemExit("the script's parameters were released")
        assert worker.advanced.shares
        """
    ).require_success()


def test_weights_that_are_set_after_a_callback_has_raised_stay(run_keras):
    """The fit had put the center into the model: nothing may put the worker's own weights back later."""
    run_keras(
        """
        import gc
        x, y = data(32)

        class Raises(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                raise KeyError("not written")

        for given in (lambda: distribute([Raises()]), lambda: [*distribute(), Raises()]):
            model = dense(optimizer=keras.optimizers.SGD(0.0))
            callbacks = given()
            try:
                model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=callbacks)
            except KeyError:
                pass
            else:
                raise AssertionError
            chosen = [np.full_like(w, 0.25) for w in model.get_weights()]
            model.set_weights(chosen)
            del callbacks
            gc.collect()
            assert (flat(model.get_weights()) == flat(chosen)).all()
            model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute())
            assert (flat(model.get_weights()) == flat(chosen)).all()
        """
    ).require_success()


def test_an_exception_of_a_callback_is_the_last_word_of_a_worker(run_keras):
    """The model has the center's weights then: its own are put back while Python can still do so."""
    outcome = run_keras(
        """
        x, y = data(32)

        def fail(callback, epoch, logs):
            raise OSError("of a callback")

        model = dense()
        model.fit(*shard(x, y), batch_size=8, verbose=0, callbacks=distribute([Watch(epoch_end=fail)]))
        """
    )
    assert outcome.result.status != 0
    for log in outcome.logs:
        assert log.splitlines()[-1] == "OSError: of a callback", log


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="about torch: run it with KERAS_BACKEND=torch")
def test_a_process_group_by_which_keras_itself_trains_is_refused(tmp_path):
    """That is Keras from 3.16 on, whose models have an attribute for it."""
    from torch import distributed

    from platoon_plugins.keras import backends

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    object.__setattr__(model, "ddp_model", None)
    backends.current().require_trainable(model, False)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        with pytest.raises(ConfigurationError, match="trains by DistributedDataParallel"):
            backends.current().require_trainable(model, False)
    finally:
        distributed.destroy_process_group()
