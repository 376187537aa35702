"""Main loops of Blocks on several workers: asynchronous and synchronous training, and how they end together."""

import pytest

from platoon_base import compat

compat.apply()
pytest.importorskip("blocks.main_loop", reason="needs Blocks: BLOCKS=/path/to/a/checkout make test")

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(300)]


def test_easgd_follows_its_equations_and_ends_with_the_center(run_blocks):
    run_blocks(
        """
        cost, error = network(seed=1 + rank)
        trace = {}
        def begin(main_loop):
            trace["begin"] = values(main_loop)
        def before(main_loop):
            for parameter in main_loop.algorithm.parameters:
                parameter.set_value(np.full_like(parameter.get_value(), rank + 2))
            if rank == 1:
                worker.barrier("worker 0 has synchronized")
        def after(main_loop):
            trace["after"] = values(main_loop)
            if rank == 0:
                worker.barrier("worker 0 has synchronized")
            worker.barrier("both have synchronized")     # the end of training does it once more
        looks = [Look(before_epoch=begin), Look(before_batch=before), Look(after_batch=after)]
        sync = ParameterSync(EASGD(alpha=0.25), every_n_batches=1)
        # The center is what counts behind ParameterSync, which takes the first place.
        main_loop = loop(cost, shard_stream(stream(16)), [*looks, FinishAfter(after_n_batches=1), sync], Scale(0.0))
        main_loop.run()
        assert main_loop.extensions[0] is sync

        begun, moved = everyones(trace["begin"]).astype("float64"), everyones(trace["after"])
        assert (begun[0] == begun[1]).all()
        center = begun[0]
        for x, got in zip((2.0, 3.0), moved):
            d = 0.25 * (x - center)
            center = center + d
            np.testing.assert_allclose(got, x - d, rtol=1e-6)
        ends = everyones(values(main_loop))
        assert (ends[0] == ends[1]).all() and not worker.advanced.shares and not worker.closed
        """
    ).require_success()


@pytest.mark.parametrize("rule", ["CenterMomentum()", "EASGD()", "ASGD()"])
def test_workers_learn_together_and_only_the_first_prints(run_blocks, rule, tmp_path):
    outcome = run_blocks(
        f"""
        cost, error = network()
        valid = stream(60, seed=1)
        extensions = [
            DistributedMonitoring([cost, error], valid, prefix="valid"), Timing(), ProgressBar(), Printing(),
            Checkpoint(tmp + "/saved.tar"), ParameterSync({rule}, every_n_batches=4), FinishAfter(after_n_epochs=4),
        ]
        main_loop = loop(cost, shard_stream(stream(240, shuffled=True)), extensions)
        main_loop.run()
        log = main_loop.log
        ends = [log[row]["valid_cost"] for row in (0, *log.status["_epoch_ends"])]
        assert len(ends) == 5 and ends[-1] < 0.9 * ends[0], ends
        assert (everyones(np.array(ends)) == ends).all()
        assert ("saved_to" in log.current_row) == (rank == 0)
        """
    ).require_success()
    assert (tmp_path / "saved.tar").exists()
    assert "TRAINING HAS BEEN FINISHED" in outcome.logs[0]
    assert "TRAINING" not in outcome.logs[1]


@pytest.mark.slow
def test_every_trigger_of_a_simple_extension_synchronizes(run_blocks):
    """In two epochs of four batches, EASGD by itself every four; at the end of training it is done once more."""
    run_blocks(
        """
        calls = []
        original = worker.sync_params
        worker.sync_params = lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
        expected = [
            (dict(), 2), (dict(after_batch=True), 8), (dict(before_batch=True), 8), (dict(every_n_batches=3), 2),
            (dict(after_n_batches=3), 1), (dict(after_epoch=True), 2), (dict(before_epoch=True), 2),
            (dict(every_n_epochs=2), 1), (dict(after_n_epochs=1), 1), (dict(every_n_batches=4, after_training=True), 2),
            (dict(every_n_batches=4, before_first_epoch=True), 3),
        ]
        cost, error = network()
        for triggers, count in expected:
            extensions = [ParameterSync(EASGD(), **triggers), FinishAfter(after_n_epochs=2)]
            loop(cost, shard_stream(stream(64)), extensions, Scale(0.0)).run()
            assert len(calls) == count + 1, (triggers, calls)
            calls.clear()
        """
    ).require_success()


@pytest.mark.slow
def test_averaged_gradients_equal_large_batches_of_one_process(run_blocks):
    """Three workers, clipping and momentum behind the average, one flattened all-reduce; 20 steps."""
    run_blocks(
        """
        from platoon_base.theano_ops import AllReduce

        def train(batches, average, extensions, seed=1):
            cost, error = network(seed=seed)
            rules = [StepClipping(0.5), Momentum(0.2, 0.9)]
            rule = CompositeRule([AllReduceGradients(), *rules]) if average else CompositeRule(rules)
            main_loop = loop(cost, batches, [*extensions, FinishAfter(after_n_batches=20)], rule)
            main_loop.run()
            return main_loop

        # Other first values on each worker: those of the first one count.
        together = train(shard_stream(stream(16 * 8 * 3, batch=8)), True, [ParameterSync(None)], seed=1 + rank)
        alone = train(stream(16 * 8 * 3, batch=24), False, [])
        np.testing.assert_allclose(values(together), values(alone), rtol=0, atol=1e-5)
        assert together.status["iterations_done"] == 20
        nodes = together.algorithm._function.maker.fgraph.toposort()
        assert sum(isinstance(node.op, AllReduce) for node in nodes) == 1
        assert (everyones(values(together)) == values(together)).all()

        inside = train(shard_stream(stream(16 * 8 * 3, batch=8)), True, [StopTogether()])
        np.testing.assert_array_equal(values(inside), values(together))
        """,
        workers=3,
    ).require_success()


def test_without_a_rule_the_algorithm_decides(run_blocks):
    """The other worker names the rule; another one is refused. With averaged gradients triggers have no effect."""
    run_blocks(
        """
        calls = []
        original = worker.sync_params
        worker.sync_params = lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
        for step_rule, rule, triggers, count in (
            (Scale(0.1), CenterMomentum(), dict(every_n_batches=2), 3), (AllReduceGradients(Scale(0.1)), None, {}, 0)
        ):
            together = ParameterSync(rule, **triggers) if rank else ParameterSync(every_n_batches=2)
            extensions = [together, FinishAfter(after_n_batches=4)]
            main_loop = loop(network(seed=1 + rank)[0], shard_stream(stream(64)), extensions, step_rule)
            main_loop.run()
            assert (everyones(values(main_loop)) == values(main_loop)).all()
            assert len(calls) == count, calls      # the end of training synchronizes once more
            calls.clear()
        """
    ).require_success()


@pytest.mark.slow
def test_averaged_gradients_may_wrap_a_step_rule(run_blocks):
    run_blocks(
        """
        ends = []
        momentum = Momentum(0.1, 0.5)
        for rule in (AllReduceGradients(momentum), CompositeRule([AllReduceGradients(), momentum])):
            extensions = [ParameterSync(), FinishAfter(after_n_epochs=1)]
            main_loop = loop(network()[0], shard_stream(stream(64)), extensions, rule)
            main_loop.run()
            ends.append(values(main_loop))
        np.testing.assert_array_equal(*ends)
        assert (everyones(ends[0]) == ends[0]).all()
        """
    ).require_success()


def test_updates_of_ones_own_and_a_schedule_equal_large_batches_of_one_process(run_blocks):
    """No step rule tells what is trained; the schedule counts batches, of which one process has as many."""
    run_blocks(
        """
        from blocks.algorithms import UpdatesAlgorithm
        from blocks.extensions.training import SharedVariableModifier
        from platoon_base.errors import ConfigurationError
        from platoon_base.theano_ops import all_reduce

        def train(batches, average, own=None):
            w = theano.shared(np.linspace(-1, 1 + rank * average, 6).astype("float32"), name="w")
            rate = theano.shared(np.float32(0.5), name="rate")
            x, y = T.matrix("features"), T.lmatrix("targets")
            gradient = theano.grad(T.sqr((x * w).sum(axis=1) - y.flatten()).mean(dtype="float32"), w)
            if average:
                (gradient,) = all_reduce(gradient, op="mean")
            extensions = [own([w])] if own else []
            schedule = SharedVariableModifier(rate, lambda n: np.float32(0.5 / (1 + n)))
            algorithm = UpdatesAlgorithm([(w, (w - rate * gradient).astype("float32"))])
            MainLoop(algorithm, batches, extensions=[*extensions, schedule, FinishAfter(after_n_epochs=2)]).run()
            return w.get_value()

        together = train(shard_stream(stream(64)), True, lambda params: ParameterSync(None, parameters=params))
        np.testing.assert_allclose(together, train(stream(64, batch=16), False), rtol=1e-5, atol=1e-6)
        assert (everyones(together) == together).all()
        center = train(shard_stream(stream(64)), False, lambda params: ParameterSync(EASGD(), parameters=params))
        assert (everyones(center) == center).all()
        try:
            train(shard_stream(stream(64)), False, lambda params: ParameterSync(EASGD()))
        except ConfigurationError as error:
            assert "pass ParameterSync(..., parameters=[...])" in str(error), error
        else:
            raise AssertionError("taken")
        """
    ).require_success()


def test_two_main_loops_one_after_the_other_and_one_twice(run_blocks):
    run_blocks(
        """
        cost, error = network()
        for _ in range(2):
            main_loop = loop(cost, shard_stream(stream(64)), [ParameterSync(EASGD()), FinishAfter(every_n_epochs=1)])
            main_loop.run()
            assert (everyones(values(main_loop)) == values(main_loop)).all()
        before = values(main_loop)
        main_loop.log.current_row["training_finish_requested"] = False
        main_loop.run()
        assert main_loop.status["epochs_done"] == 2 and (values(main_loop) != before).any()
        assert (everyones(values(main_loop)) == values(main_loop)).all()
        """
    ).require_success()


STOPPED = """
    cost, error = network()
    class StopAt(SimpleExtension):
        def do(self, which_callback, *args):
            self.main_loop.log.current_row["training_finish_requested"] = True
    def run(when, policy, sync):
        stop = [StopAt(**when[rank])] if rank in when else []
        rule = AllReduceGradients(Scale(0.1)) if sync else Scale(0.1)
        together = ParameterSync(None) if sync else ParameterSync(EASGD(), every_n_batches=2)
        monitoring = DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")
        extensions = [StopTogether(policy=policy), together, *stop, monitoring, FinishAfter(after_n_epochs=4)]
        main_loop = loop(cost, shard_stream(stream(80), uneven="drop"), extensions, rule)
        main_loop.run()
        assert main_loop.log.current_row["training_finished"]
        assert (everyones(values(main_loop)) == values(main_loop)).all()
        return worker.all_gather(np.array([main_loop.status["epochs_done"], main_loop.status["iterations_done"]]))
"""


@pytest.mark.slow
def test_averaged_gradients_stop_after_the_same_batch(run_blocks):
    """5 batches in an epoch, 4 epochs at most."""
    run_blocks(
        STOPPED
        + """
    assert (run({1: dict(after_n_batches=7)}, "any", True) == [1, 7]).all()
    assert (run({0: dict(after_n_batches=7), 1: dict(after_n_batches=12)}, "all", True) == [2, 12]).all()
    assert (run({1: dict(after_n_batches=3), 0: dict(after_n_epochs=2)}, "leader", True) == [2, 10]).all()
    assert (run({1: dict(after_n_epochs=1)}, "all", True) == [4, 20]).all()
    """
    ).require_success()


@pytest.mark.slow
def test_asynchronous_workers_stop_together(run_blocks):
    run_blocks(
        STOPPED
        + """
    assert (run({1: dict(after_n_epochs=2)}, "any", False) == [2, 10]).all()
    assert (run({1: dict(after_n_epochs=1)}, "leader", False) == [4, 20]).all()
    assert (run({0: dict(after_n_epochs=1), 1: dict(after_n_epochs=3)}, "all", False) == [3, 15]).all()
    # In the middle of an epoch, each at its own batch; nobody waits for a monitoring that does not come.
    ends = run({1: dict(after_n_batches=7)}, "any", False)
    assert ends[1].tolist() == [1, 7] and ends[0][0] in (1, 2) and ends[0][1] <= 20
    """
    ).require_success()


def test_a_worker_that_ends_alone_leaves_and_the_others_go_on(run_blocks):
    run_blocks(
        """
        cost, error = network()
        end = FinishAfter(after_n_batches=7) if rank == 1 else FinishAfter(after_n_epochs=4)
        extensions = [ParameterSync(EASGD(), every_n_batches=2), end,
                      DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")]
        main_loop = loop(cost, shard_stream(stream(80), uneven="drop"), extensions)
        main_loop.run()
        assert worker.closed == (rank == 1)
        if rank == 0:
            assert main_loop.status["epochs_done"] == 4
            assert all("valid_cost" in main_loop.log[row] for row in main_loop.status["_epoch_ends"])
        """
    ).require_success()


def test_statistics_of_batch_normalization_are_averaged(run_blocks):
    """And saved so behind a monitoring; between meetings those of one worker are saved, which is told once."""
    outcome = run_blocks(
        """
        from blocks.bricks import BatchNormalizedMLP
        from blocks.graph import apply_batch_normalization, get_batch_normalization_updates
        from blocks.filter import get_brick
        from blocks.serialization import load_parameters

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
        def look(main_loop):
            own.append(np.concatenate([p.get_value() for p in statistics]))
        monitoring = DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")
        saved = dict(parameters=statistics, save_main_loop=False, after_training=False)
        between = Checkpoint(tmp + "/between.tar", every_n_batches=1, **saved)
        behind = Checkpoint(tmp + "/behind.tar", after_epoch=True, **saved)
        main_loop = MainLoop(algorithm, shard_stream(stream(32)), extensions=[
            ParameterSync(EASGD(), every_n_batches=1), Look(after_epoch=look), between, monitoring, behind,
            Look(after_epoch=look), FinishAfter(after_n_epochs=1)])
        main_loop.run()
        before, after = everyones(own[0]), everyones(own[1])
        if rank == 0:
            for name, expected in (("between", before[0]), ("behind", after[0])):
                with open(f"{tmp}/{name}.tar", "rb") as file:
                    found = load_parameters(file)
                names = [get_brick(p).get_hierarchical_name(p) for p in statistics]
                np.testing.assert_array_equal(np.concatenate([found[name] for name in names]), expected)
        assert (before[0] != before[1]).any()
        np.testing.assert_allclose(after, np.broadcast_to(before.mean(axis=0), after.shape), rtol=1e-6)
        """
    ).require_success()
    told = "of this worker alone, as the workers averaged theirs last after batch 0: put Checkpoint"
    assert [log.count(told) for log in outcome.logs] == [1, 0]


def test_dropout_differs_between_workers(run_blocks):
    run_blocks(
        """
        from theano.sandbox.rng_mrg import MRG_RandomStreams
        noise = MRG_RandomStreams(seed=3).uniform((4,), dtype="float32")
        cost, error = network()
        algorithm = GradientDescent(cost=cost, parameters=ComputationGraph(cost).parameters, step_rule=Scale(0.1))
        drawn = theano.shared(np.zeros(4, "float32"))
        algorithm.add_updates([(drawn, noise)])
        extensions = [ParameterSync(EASGD()), FinishAfter(after_n_batches=1)]
        MainLoop(algorithm, shard_stream(stream(16)), extensions=extensions).run()
        draws = everyones(drawn.get_value())
        assert (draws[0] != draws[1]).all()
        """
    ).require_success()


def test_alone_a_script_is_unchanged(run_blocks):
    """With everything of this package in a job of one, and without any of it: the same bits, records and output."""
    run_blocks(
        """
        import contextlib, io
        def run(ours):
            cost, error = network()
            rule = Momentum(0.1, 0.9)
            valid, train = stream(45, seed=1), stream(60, shuffled=True)
            extensions = [DataStreamMonitoring([cost, error], valid, prefix="valid"),
                          TrainingDataMonitoring([cost], prefix="train", after_epoch=True), Timing(),
                          FinishAfter(after_n_epochs=3), Printing(), Checkpoint(tmp + "/alone.tar", every_n_batches=4)]
            if ours:
                extensions[:2] = [DistributedMonitoring([cost, error], valid, prefix="valid"),
                                  DistributedTrainingMonitoring([cost], prefix="train", after_epoch=True)]
                extensions[3:3] = [StopTogether(), ParameterSync(EASGD())]
                whole, train = train, shard_stream(train)
                assert train is whole
                rule = AllReduceGradients(rule)
            main_loop = loop(cost, train, extensions, rule)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                main_loop.run()
            assert main_loop.extensions is extensions
            rows = [(row, name, float(value)) for row in main_loop.log for name, value in main_loop.log[row].items()
                    if "cost" in name or "error" in name]
            lines = [line for line in out.getvalue().splitlines() if "time" not in line and "uuid" not in line]
            return values(main_loop), rows, lines
        (a, rows_a, out_a), (b, rows_b, out_b) = run(False), run(True)
        np.testing.assert_array_equal(a, b)
        assert rows_a == rows_b and out_a == out_b and any("valid_cost" in line for line in out_a)
        """,
        workers=1,
    ).require_success()
