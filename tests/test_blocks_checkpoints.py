"""What is saved of main loops on several workers, and what goes on from it; faults and bad input."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from platoon_base import compat

compat.apply()
pytest.importorskip("blocks", reason="needs Blocks: BLOCKS=/path/to/a/checkout make test")

from blocks.algorithms import Scale

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks import EASGD, AllReduceGradients, ParameterSync, StopTogether

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(180)]


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
        best = Recorded(tmp + "/managed.tar", after_training=False, save_main_loop=False)
        monitoring = DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")
        extensions = [monitoring, EarlyStopping("valid_cost", best, tmp + "/best.tar", epochs=50),
                      Look(after_batch=look), Recorded(tmp + "/saved.tar", every_n_batches=3, save_main_loop=False),
                      ParameterSync(EASGD(alpha=0.3), every_n_batches=2), FinishAfter(after_n_batches=3)]
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
def test_a_pickled_main_loop_goes_on_with_any_number_of_workers(run_blocks, way, workers):
    run_blocks(RESUMED, 2, args=[way]).require_success()
    outcome = run_blocks(RESUMED, workers, args=[way, "resume"]).require_success()
    assert "TRAINING HAS BEEN RESUMED" in outcome.logs[0]
    assert all("TRAINING" not in log for log in outcome.logs[1:])


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


def test_an_exception_on_one_worker_leaves_the_others_training(run_blocks):
    outcome = run_blocks(
        """
        cost, error = network()
        def fail(main_loop):
            if rank == 1 and main_loop.status["iterations_done"] == 5:
                raise RuntimeError("on purpose")
        saved = []
        look = Look(after_batch=fail, on_error=lambda main_loop: saved.append(worker.closed))
        monitoring = DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")
        extensions = [ParameterSync(EASGD(), every_n_batches=2), look, monitoring, StopTogether()]
        train = shard_stream(stream(80), uneven="drop")
        main_loop = loop(cost, train, [*extensions, FinishAfter(after_n_epochs=3)])
        try:
            main_loop.run()
        except RuntimeError:
            assert saved == [True]      # the extensions that run on errors come behind ParameterSync
            raise
        assert main_loop.status["epochs_done"] == 3
        assert all("valid_cost" in main_loop.log[row] for row in main_loop.status["_epoch_ends"])
        """,
        workers=3,
    )
    assert [e.status for e in sorted(outcome.result.exits)] == [0, 1, 0], outcome.logs
    assert "on purpose" in outcome.logs[1]


def test_a_death_ends_averaged_gradients_with_an_error_that_names_it(run_blocks):
    outcome = run_blocks(
        """
        import signal
        def die(main_loop):
            if rank == 1 and main_loop.status["iterations_done"] == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        main_loop = loop(network()[0], shard_stream(stream(80), uneven="drop"), [
            ParameterSync(None), Look(after_batch=die), FinishAfter(after_n_epochs=9)], AllReduceGradients(Scale(0.1)))
        main_loop.run()
        """
    )
    assert [e.status for e in sorted(outcome.result.exits)] == [1, 137], outcome.logs
    assert "WorkerLostError" in outcome.logs[0]
    assert "rank 1" in outcome.logs[0]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_ctrl_c_ends_all_main_loops_with_what_was_trained(write_script, tmp_path, way):
    preamble = Path(__file__).with_name("blocks_preamble.py").read_text()
    script = write_script(
        preamble
        + textwrap.dedent(
            f"""
            sync = {way == "sync"}
            def tell(main_loop):
                if main_loop.status["iterations_done"] == 5:
                    open(tmp + "/" + str(rank), "w").close()
            together = ParameterSync(None) if sync else ParameterSync(EASGD(), every_n_batches=2)
            rule = AllReduceGradients(Scale(0.1)) if sync else Scale(0.1)
            main_loop = loop(network()[0], shard_stream(stream(80), uneven="drop"), [
                together, Look(after_batch=tell), Checkpoint(tmp + "/saved.tar", save_main_loop=False)], rule)
            main_loop.run()
            assert main_loop.log.current_row["training_finished"]
            open(tmp + "/ended " + str(rank), "w").close()
            """
        )
    )
    command = [
        sys.executable,
        "-m",
        "platoon_base",
        "launch",
        "-n",
        "2",
        "--log-dir",
        str(tmp_path / "logs"),
        str(script),
    ]
    job = subprocess.Popen([*command, str(tmp_path)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not all((tmp_path / str(rank)).exists() for rank in range(2)):
        assert job.poll() is None, job.communicate()[0].decode()
    os.kill(job.pid, signal.SIGINT)
    out = job.communicate(timeout=60)[0].decode()
    assert job.returncode == 130, out
    logs = "".join(path.read_text() for path in (tmp_path / "logs").rglob("*.log"))
    assert all((tmp_path / f"ended {rank}").exists() for rank in range(2)), out + logs
    assert (tmp_path / "saved.tar").exists()
    assert "Traceback" not in logs, logs


REFUSED = {
    "two ParameterSync": (
        "[ParameterSync(EASGD()), ParameterSync(EASGD(), name='again')]", "Scale(0.1)", "ParameterSync twice",
    ),
    "two StopTogether": (
        "[ParameterSync(EASGD()), StopTogether(), StopTogether()]", "Scale(0.1)", "StopTogether twice",
    ),
    "a rule and averages": ("[ParameterSync(EASGD())]", "AllReduceGradients(Scale(0.1))", "kept together twice"),
    "neither": ("[StopTogether()]", "Scale(0.1)", "a model of its own"),
    "None without averages": ("[ParameterSync(None)]", "Scale(0.1)", "a model of its own"),
    "other parameters": (
        "[ParameterSync(EASGD())]", "Scale(0.1)", "LayoutMismatchError", "network(hidden=5 + rank)[0]",
    ),
    "other averaged parameters": (
        "[ParameterSync(None)]", "AllReduceGradients(Scale(0.1))", "LayoutMismatchError", "network(hidden=5 + rank)[0]",
    ),
    "other rules": (
        "[ParameterSync(EASGD() if rank else ASGD())]", "Scale(0.1)", "worker 0 is at the begin, with ASGD",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_by_every_worker(run_blocks, case):
    extensions, rule, complaint, cost = (*case, "network()[0]")[:4]
    outcome = run_blocks(
        f"""
        cost = {cost}
        main_loop = loop(cost, shard_stream(stream(64)), [*{extensions}, FinishAfter(after_n_batches=4)], {rule})
        main_loop.run()
        """
    )
    assert outcome.result.status == 1
    assert any(complaint in log for log in outcome.logs), outcome.logs


def test_monitoring_at_different_places_names_them(run_blocks):
    outcome = run_blocks(
        """
        cost = network()[0]
        other = DistributedMonitoring([cost], stream(16), name="mine" if rank else "yours")
        extensions = [ParameterSync(EASGD()), other, FinishAfter(after_n_batches=4)]
        main_loop = loop(cost, shard_stream(stream(64)), extensions)
        main_loop.run()
        """
    )
    assert outcome.result.status == 1
    assert "worker 0 is at monitoring yours; worker 1 is at monitoring mine" in outcome.logs[0], outcome.logs


def test_a_period_that_never_comes_is_told(run_blocks):
    outcome = run_blocks(
        """
        main_loop = loop(network()[0], shard_stream(stream(64)), [ParameterSync(EASGD(), every_n_batches=1000),
                                                                  FinishAfter(after_n_batches=3)])
        main_loop.run()
        """
    ).require_success()
    assert "nothing was synchronized in 3 batches" in outcome.logs[0]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: ParameterSync(EASGD), "pass EASGD"),
        (lambda: ParameterSync("EASGD"), "pass EASGD"),
        (lambda: ParameterSync(EASGD(), every_n_batches=0), "every_n_batches=0"),
        (lambda: ParameterSync(EASGD(), every_n_batches=2.5), "every_n_batches=2.5"),
        (lambda: ParameterSync(EASGD(), every_n_epochs=-1), "counts epochs"),
        (lambda: ParameterSync(EASGD(), after_batch=False), "nothing is synchronized"),
        (lambda: ParameterSync(EASGD(), before_training=True), "nothing is synchronized"),
        (lambda: ParameterSync(None, every_n_batches=10), "no rule"),
        (lambda: ParameterSync(EASGD(), on_nonfinite="ignore"), "on_nonfinite"),
        (lambda: StopTogether("most"), "any, all, leader"),
        (lambda: AllReduceGradients(0.1), "step rule"),
        (lambda: AllReduceGradients(Scale), "step rule"),
    ],
)
def test_bad_arguments_are_refused(call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call()
