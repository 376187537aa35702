"""Fits without `distribute`, callbacks beside it, and files of several, on every back end that is installed."""

import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]


def test_a_model_that_workers_have_trained_together_is_trained_by_none_of_them_alone(run_keras):
    """By a fit without `distribute`, or by ``train_on_batch``; what is meant for one worker alone goes on with a word.

    A fit of another model is warned of, as it may be meant; neither is one of a script that shares weights by itself.
    """
    run_keras(
        """
        import warnings
        from platoon_base.errors import PlatoonWarning
        x, y = data(32)
        own = dict(zip("xy", shard(x, y)), batch_size=8, verbose=0)

        def said(call):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
            return [str(each.message) for each in caught if issubclass(each.category, PlatoonWarning)]

        def refusal(call):
            try:
                call()
            except PlatoonError as exc:
                return str(exc)
            raise AssertionError("it trained")

        lone = dense()
        (warning,) = said(lambda: lone.fit(**own))
        assert "without distribute(...) in a job of 2 workers" in warning, warning
        assert not said(lambda: lone.fit(**own)), "said twice"

        for averaged in (False,) if KERAS_2 else (False, True):
            model = dense(optimizer=DistributedOptimizer("sgd") if averaged else "sgd")
            model.fit(**own, callbacks=distribute())
            before = flat(model.get_weights())
            assert "without distribute(...)" in refusal(lambda: model.fit(**own))
            assert "without distribute(...)" in refusal(lambda: model.train_on_batch(own["x"][:8], own["y"][:8]))
            model.compile("adam", loss="categorical_crossentropy", metrics=["accuracy"])
            assert "got a fit without distribute(...)" in refusal(lambda: model.fit(**own))
            assert (flat(model.get_weights()) == before).all()
            model.evaluate(x, y, verbose=0)
            model.predict(x, verbose=0)

        weights = [np.zeros(3, "float32")]
        worker.init_shared_params(weights, EASGD())
        model.fit(**own)
        worker.release_shared_params()
        """
    ).require_success()


def test_callbacks_beside_those_of_distribute_belong_to_them(run_keras, tmp_path):
    """In front of them, behind them and both: files are written once, values and stops are those of all workers."""
    run_keras(
        """
        x, y = data(48)
        xv, yv = data(24, seed=1)
        folder = sys.argv[1]

        def fit(place):
            model = dense(optimizer=keras.optimizers.SGD(0.1))
            watch = Watch(epoch_end=lambda callback, epoch, logs: rank == 1 and epoch == 1 and stop(callback))
            log = keras.callbacks.CSVLogger(os.path.join(folder, place + ".csv"))
            path = os.path.join(folder, f"{place} of rank {rank}." + ("h5" if KERAS_2 else "keras"))
            save = keras.callbacks.ModelCheckpoint(path)
            ours = {"in front": lambda: [watch, save, log, *distribute([])],
                    "behind": lambda: [*distribute([]), save, log, watch],
                    "both": lambda: [save, *distribute([watch]), log]}[place]()
            history = model.fit(*shard(x, y), validation_data=shard(xv, yv), epochs=4, batch_size=8, verbose=0,
                                callbacks=ours)
            assert watch.epochs == [0, 1], (place, watch.epochs)
            losses = everyones([logs["val_loss"] for logs in watch.logs])
            assert (losses[0] == losses[1]).all(), (place, losses)
            assert os.path.exists(path) == (rank == 0), place
            worker.barrier("written")
            with open(os.path.join(folder, place + ".csv")) as file:
                head, *lines = file.read().split()
            assert [line.split(",")[0] for line in lines] == ["0", "1"], (place, lines)

        for place in ("in front", "behind", "both"):
            fit(place)
        try:
            dense().fit(*shard(x, y), verbose=0, callbacks=[*distribute(), *distribute()])
        except PlatoonError as exc:
            assert "2 calls of distribute()" in str(exc)
        else:
            raise AssertionError("kept together twice")
        """
    ).require_success()


def test_a_file_that_two_workers_write_is_noticed(run_keras, tmp_path):
    outcome = run_keras(
        """
        import fcntl
        model = dense()
        ending = "h5" if KERAS_2 else "keras"
        for rank_alone in range(size):  # one after the other, and each a file of its own too
            if rank == rank_alone:
                model.save(os.path.join(sys.argv[1], f"common.{ending}"))
                model.save(os.path.join(sys.argv[1], f"own of {rank}.{ending}"))
            worker.barrier("saved")
        path = os.path.join(sys.argv[1], "held.weights.h5")
        if rank == 0:
            with open(path, "w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)  # as HDF5 does
                try:
                    model.save_weights(path)
                except PlatoonError as exc:
                    assert "another worker is writing" in str(exc)
                    assert "if connect().is_leader" in str(exc)
                else:
                    raise AssertionError("written")
        """
    ).require_success()
    (warning,) = [
        line for log in outcome.logs for line in log.splitlines() if "WARNING" in line and "has written" in line
    ]
    assert "common." in warning
