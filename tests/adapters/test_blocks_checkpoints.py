"""What is saved of main loops on several workers, and what goes on from it."""

import pytest

from platoon_base import compat

compat.apply()
pytest.importorskip("blocks.main_loop", reason="needs Blocks: BLOCKS=/path/to/a/checkout make test")

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(300)]


@pytest.mark.slow
def test_the_center_is_what_is_saved(run_blocks):
    """In the middle of an epoch, at its end, and by a Checkpoint that EarlyStopping manages."""
    run_blocks(
        """
        from blocks.extensions.stopping import EarlyStopping
        from blocks.serialization import load_parameters

        cost, error = network()
        saved = []
        class Recorded(Checkpoint):
            def do(self, which_callback, *args):
                saved.append((str(which_callback), values(self.main_loop)))
                super().do(which_callback, *args)
        own, center = [], []
        def look(main_loop):
            own.append(values(main_loop))
            with worker.center_params():
                center.append(values(main_loop))
            worker.barrier("looked")
        def saved_by_now(main_loop):
            worker.barrier("saved")          # the end of training moves the center once more
        best = Recorded(tmp + "/managed.tar", after_training=False, save_main_loop=False)
        monitoring = DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")
        extensions = [monitoring, EarlyStopping("valid_cost", best, tmp + "/best.tar", epochs=50),
                      Look(after_batch=look), Recorded(tmp + "/saved.tar", every_n_batches=3, save_main_loop=False),
                      Look(after_batch=saved_by_now), ParameterSync(EASGD(alpha=0.3), every_n_batches=2),
                      FinishAfter(after_n_batches=3)]
        main_loop = loop(cost, shard_stream(stream(64)), extensions)
        main_loop.run()
        if rank == 0:
            assert [name for name, _ in saved] == ["after_batch", "after_training"], saved
            assert (saved[0][1] == center[2]).all() and (saved[0][1] != own[2]).any()
            with open(tmp + "/saved.tar", "rb") as file:
                parameters = load_parameters(file)
            for name, shared in main_loop.model.get_parameter_dict().items():
                np.testing.assert_array_equal(parameters[name], shared.get_value())
        else:
            assert not saved
        """
    ).require_success()


def test_what_is_saved_is_what_was_validated_last(run_blocks):
    """At the end, where steps behind the last synchronization are no part of it; and while another goes on training."""
    run_blocks(
        """
        from pathlib import Path
        import theano
        from blocks.serialization import load_parameters
        from watching import await_file
        cost, _ = network()
        valid, moved, saved = stream(24, seed=1), tmp + "/moved", {}
        def moves(main_loop):  # in the second epoch, before the first worker has saved at the end of the first
            if rank == 1 and main_loop.status["iterations_done"] == 8:
                open(moved, "w").close()
        def waits(main_loop):
            if rank == 0 and main_loop.status["epochs_done"] == 1:
                await_file(Path(moved))
        main_loop = loop(cost, shard_stream(stream(80)), [
            DistributedMonitoring([cost], valid, prefix="valid", after_epoch=True),
            ParameterSync(EASGD(alpha=0.3), every_n_batches=3), Look(after_batch=moves, after_epoch=waits),
            Checkpoint(tmp + "/1.tar", save_main_loop=False, after_n_epochs=1, after_training=False),
            Checkpoint(tmp + "/2.tar", save_main_loop=False), FinishAfter(after_n_epochs=2)], Scale(0.2))
        main_loop.run()
        ends = values(main_loop)
        assert (everyones(ends) == ends).all()
        if rank == 0:
            value = theano.function(ComputationGraph(cost).inputs, cost, on_unused_input="ignore")
            names = [x.name for x in ComputationGraph(cost).inputs]
            for epoch in (1, 2):
                with open(f"{tmp}/{epoch}.tar", "rb") as file:
                    main_loop.model.set_parameter_values(load_parameters(file))
                again = np.mean([value(*(batch[n] for n in names)) for batch in valid.get_epoch_iterator(as_dict=True)])
                np.testing.assert_allclose(main_loop.log[5 * epoch]["valid_cost"], again, rtol=1e-6)
            assert (values(main_loop) == ends).all()
        """
    ).require_success()


def test_when_the_first_worker_dies_the_next_one_prints_and_saves(run_blocks):
    outcome = run_blocks(
        """
        import signal
        from blocks.serialization import load_parameters
        def die(main_loop):
            if rank == 0 and main_loop.status["epochs_done"] == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        cost, _ = network()
        main_loop = loop(cost, shard_stream(stream(64)), [
            DistributedMonitoring([cost], stream(24, seed=1), prefix="valid", after_epoch=True),
            ParameterSync(EASGD(), every_n_batches=3), Look(after_batch=die), FinishAfter(after_n_epochs=2),
            Printing(), Checkpoint(tmp + "/loop.tar", save_main_loop=False)], Scale(0.2))
        main_loop.run()
        with open(tmp + "/loop.tar", "rb") as file:
            saved = load_parameters(file)
        for name, parameter in main_loop.model.get_parameter_dict().items():
            np.testing.assert_array_equal(saved[name], parameter.get_value())
        """
    )
    assert [e.status for e in sorted(outcome.result.exits)] == [137, 0], outcome.logs
    assert "rank 1 prints and saves from now on" in outcome.logs[1]
    assert "TRAINING HAS BEEN FINISHED" in outcome.logs[1]
    assert "BEFORE FIRST EPOCH" not in outcome.logs[1]


@pytest.mark.slow
def test_the_best_center_is_what_is_saved_when_it_is_the_best(run_blocks):
    """The third and last epoch climbs instead of descending."""
    run_blocks(
        """
        from blocks.extensions.predicates import OnLogRecord
        from blocks.extensions.training import SharedVariableModifier, TrackTheBest
        from blocks.serialization import load_parameters

        cost, error = network()
        rule = Scale(0.2)
        centers, best, costs = [], [], []
        def look(main_loop):
            row = main_loop.log.current_row
            with worker.center_params():
                centers.append([p.get_value() for p in main_loop.model.get_parameter_dict().values()])
            costs.append(float(row["valid_cost"]))
            best.append(row.get("valid_cost_best_so_far", False))
            worker.barrier("looked")         # nobody moves the center before
        saving = Checkpoint(tmp + "/last.tar", after_training=False, save_main_loop=False)
        saving.add_condition(["after_epoch"], OnLogRecord("valid_cost_best_so_far"), (tmp + "/best.tar",))
        extensions = [DistributedMonitoring([cost], stream(24, seed=1), prefix="valid", after_epoch=True),
                      TrackTheBest("valid_cost"), saving, Look(after_epoch=look), FinishAfter(after_n_epochs=3),
                      SharedVariableModifier(rule.learning_rate, lambda n: np.float32(0.2 if n < 8 else -0.2)),
                      ParameterSync(EASGD(alpha=0.3), every_n_batches=2), StopTogether()]
        main_loop = loop(cost, shard_stream(stream(64), uneven="drop"), extensions, rule)
        main_loop.run()
        assert costs[0] > costs[1] < costs[2] and best == [True, True, False], (costs, best)
        assert (everyones(np.array(costs)) == costs).all() and (everyones(np.array(best, int)) == best).all()
        if rank == 0:
            with open(tmp + "/best.tar", "rb") as file:
                saved = load_parameters(file)
            for name, expected in zip(main_loop.model.get_parameter_dict(), centers[1]):
                np.testing.assert_array_equal(saved[name], expected)
        """
    ).require_success()


RESUMED = """
from blocks.serialization import load
if len(sys.argv) > 3:
    with open(tmp + "/loop.tar", "rb") as file:
        main_loop = load(file)
    done = main_loop.status["iterations_done"]
    saved = values(main_loop)
    seen = []
    look = Look(before_batch=lambda main_loop: seen.append(values(main_loop)))
    look.main_loop = main_loop
    main_loop.extensions.append(look)
else:
    cost, error = network()
    sync = sys.argv[2] == "sync"
    extensions = [ParameterSync(None if sync else EASGD(), **({} if sync else dict(every_n_batches=2))), StopTogether(),
                  DistributedMonitoring([cost, error], stream(45, seed=1), prefix="valid"),
                  DistributedTrainingMonitoring([cost], prefix="train", after_epoch=True),
                  Checkpoint(tmp + "/loop.tar", every_n_batches=5, after_training=False), Printing(),
                  FinishAfter(after_n_batches=9)]
    rule = AllReduceGradients(Momentum(0.1, 0.9)) if sync else Momentum(0.1, 0.9)
    main_loop = loop(cost, shard_stream(stream(96, shuffled=True), uneven="drop"), extensions, rule)
    done = 0
main_loop.run()
ends = values(main_loop)
assert (everyones(ends) == ends).all()
if done:
    assert done == 5 and (seen[0] == saved).all() and (ends != saved).any()
    if sys.argv[2] == "sync":  # asynchronous workers stop as soon as one wants to, each where it is
        assert main_loop.status["iterations_done"] == 9 and main_loop.status["epochs_done"] == 1 and len(seen) == 4
        # Of the 12 batches of the epoch 10 were done by two workers.
        assert "valid_cost" in main_loop.log[6 if size == 2 else 7], main_loop.log
"""


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("workers", [2, 1])
@pytest.mark.slow
def test_a_pickled_main_loop_goes_on_with_any_number_of_workers(run_blocks, way, workers):
    run_blocks(RESUMED, 2, args=[way]).require_success()
    outcome = run_blocks(RESUMED, workers, args=[way, "resume"]).require_success()
    assert "TRAINING HAS BEEN RESUMED" in outcome.logs[0]
    assert all("TRAINING" not in log for log in outcome.logs[1:])


@pytest.mark.slow
def test_averaged_gradients_go_on_exactly(run_blocks):
    """20 steps at once, and 20 of which the last 13 are resumed: the same bits on the same number of workers."""
    script = """
    from blocks.serialization import load
    def begin(extensions):
        rule = CompositeRule([AllReduceGradients(), StepClipping(1.0), Adam(0.01)])
        train = shard_stream(stream(96, shuffled=True), uneven="drop")
        return loop(network()[0], train, [ParameterSync(None), *extensions], rule)
    if len(sys.argv) > 2:
        with open(tmp + "/loop.tar", "rb") as file:
            main_loop = load(file)
        main_loop.run()
        assert main_loop.status["iterations_done"] == 20
        expected = np.load(tmp + "/expected.npy")
        np.testing.assert_array_equal(values(main_loop), expected)
    else:
        checkpoint = Checkpoint(tmp + "/loop.tar", after_n_batches=7, after_training=False)
        main_loop = begin([checkpoint, FinishAfter(after_n_batches=20)])
        main_loop.run()
        if rank == 0:
            np.save(tmp + "/expected.npy", values(main_loop))
    """
    run_blocks(script).require_success()
    run_blocks(script, args=["resume"]).require_success()


def test_load_brings_values_and_refuses_another_model(run_blocks):
    run_blocks(
        """
        from platoon_base.errors import LayoutMismatchError
        cost, error = network(seed=3)
        first = loop(cost, shard_stream(stream(64)), [ParameterSync(EASGD()), FinishAfter(after_n_batches=2),
                                                      Checkpoint(tmp + "/model.tar", save_main_loop=False)])
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
        try:
            third.run()
        except LayoutMismatchError as error:
            assert "/other/linear_0.W" in str(error) and "/mlp/linear_0.W" in str(error), error
        else:
            raise AssertionError("another model was taken")
        """
    ).require_success()


@pytest.mark.slow
def test_what_one_process_saved_goes_on_asynchronously_with_two(run_blocks):
    """Extensions take their places then; averaged gradients have no place in a function that was compiled for one."""
    script = """
    from blocks.serialization import load
    if len(sys.argv) > 3:
        with open(tmp + "/loop.tar", "rb") as file:
            main_loop = load(file)
        main_loop.run()
        assert [type(e).__name__ for e in main_loop.extensions][::3] == ["ParameterSync", "StopTogether"]
        assert (everyones(values(main_loop)) == values(main_loop)).all()
    else:
        sync = sys.argv[2] == "sync"
        rule = AllReduceGradients(Scale(0.1)) if sync else Scale(0.1)
        saving = Checkpoint(tmp + "/loop.tar", after_n_batches=3, after_training=False)
        extensions = [StopTogether(), FinishAfter(after_n_batches=6), saving, ParameterSync()]
        loop(network()[0], shard_stream(stream(80)), extensions, rule).run()
    """
    run_blocks(script, 1, args=["async"]).require_success()
    run_blocks(script, 2, args=["async", "resume"]).require_success()
    run_blocks(script, 1, args=["sync"]).require_success()
    refused = run_blocks(script, 2, args=["sync", "resume"])
    assert refused.result.status == 1
    assert all("made in a job of one" in log for log in refused.logs), refused.logs


@pytest.mark.slow
def test_what_was_accumulated_before_a_checkpoint_counts_once(run_blocks):
    script = """
    from blocks.serialization import load
    if len(sys.argv) > 2:
        with open(tmp + "/loop.tar", "rb") as file:
            main_loop = load(file)
        main_loop.run()
        # Of the 12 batches of the epoch, those after batch 4 of each worker, and the first worker's before.
        assert main_loop.log[6]["train_rows"].tolist() == 8 * [8], main_loop.log[6]
    else:
        cost, error = network()
        (x,) = [v for v in ComputationGraph(cost).inputs if v.name == "features"]
        rows = aggregation.concatenate(x.shape[0].copy("rows"))
        saving = Checkpoint(tmp + "/loop.tar", after_n_batches=4, after_training=False)
        monitoring = DistributedTrainingMonitoring([rows], prefix="train", after_epoch=True)
        extensions = [ParameterSync(None), monitoring, saving, FinishAfter(after_n_epochs=1)]
        loop(cost, shard_stream(stream(96), uneven="drop"), extensions, AllReduceGradients(Scale(0.1))).run()
    """
    run_blocks(script).require_success()
    run_blocks(script, args=["resume"]).require_success()


@pytest.mark.slow
def test_what_is_quiet_on_one_worker_is_not_when_resumed_alone(run_blocks):
    script = """
    from blocks.serialization import load
    from platoon_plugins.blocks import LEADER_ONLY
    if len(sys.argv) > 2:
        with open(tmp + "/1.tar", "rb") as file:
            load(file).run()
    else:
        saving = Checkpoint(f"{tmp}/{rank}.tar", after_n_batches=1, after_training=False)
        together = ParameterSync(EASGD(), leader_only=tuple(kind for kind in LEADER_ONLY if kind is not Checkpoint))
        extensions = [together, saving, Printing(), FinishAfter(after_n_batches=3)]
        loop(network()[0], shard_stream(stream(64)), extensions).run()
    """
    assert "TRAINING" not in run_blocks(script).require_success().logs[1]
    assert "TRAINING HAS BEEN FINISHED" in run_blocks(script, 1, args=["resume"]).require_success().logs[0]


@pytest.mark.slow
def test_a_log_that_is_loaded_does_not_count_as_batches_of_this_training(run_blocks):
    run_blocks(
        """
        first = loop(network()[0], shard_stream(stream(64)), [ParameterSync(EASGD()), FinishAfter(after_n_epochs=1),
                                                              Checkpoint(tmp + "/first.tar")])
        first.run()
        worker.barrier("saved")
        cost, _ = network()
        (x,) = [v for v in ComputationGraph(cost).inputs if v.name == "features"]
        each = aggregation.concatenate(x.mean(axis=0).copy("each"))
        monitoring = DistributedTrainingMonitoring([cost, each], prefix="train", every_n_batches=2)
        loading = Load(tmp + "/first.tar", load_log=True)
        extensions = [ParameterSync(EASGD()), monitoring, loading, FinishAfter(after_n_batches=6)]
        second = loop(cost, shard_stream(stream(64)), extensions)
        second.run()
        assert second.status["iterations_done"] == 6
        # Batches 5 and 6 of each worker.
        assert second.log[6]["train_each"].shape == (4, 6)
        """
    ).require_success()
