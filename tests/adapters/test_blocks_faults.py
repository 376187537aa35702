"""Faults on the way and bad input: nobody hangs, and everybody learns what is wrong."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import Mock

import pytest
from needing import require
from scripts_here import script_path

require("blocks.main_loop")

from blocks.algorithms import Scale

from platoon_base.checkpoints.files import CheckpointFolder
from platoon_base.checkpoints.writer import Saving
from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks import EASGD, AllReduceGradients, ParameterSync, StopTogether
from platoon_plugins.blocks.training import Vote

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(600)]


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


@pytest.mark.slow
def test_another_worker_saves_prints_and_reports_if_rank_0_fails(run_blocks, tmp_path):
    outcome = run_blocks(script_path("blocks_faults_another_worker_saves_prints_and_reports"))
    assert [e.status for e in sorted(outcome.result.exits)] == [1, 0], outcome.logs
    assert (tmp_path / "model.zip").exists(), outcome.logs
    assert "valid_cost" in outcome.reported
    assert "Training status:" in outcome.logs[1]


@pytest.mark.promise
@pytest.mark.slow
def test_a_death_ends_averaged_gradients_with_an_error_that_names_it(run_blocks):
    outcome = run_blocks(script_path("blocks_faults_a_death_ends_averaged_gradients"))
    assert [e.status for e in sorted(outcome.result.exits)] == [1, 137], outcome.logs
    assert "WorkerLostError" in outcome.logs[0]
    assert "rank 1" in outcome.logs[0]


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.slow
def test_ctrl_c_ends_all_main_loops_with_what_was_trained(write_script, tmp_path, way):
    preamble = (Path(__file__).parents[1] / "helpers" / "blocks_preamble.py").read_text()
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
    out = job.communicate(timeout=120)[0].decode()
    assert job.returncode == 130, out
    logs = "".join(path.read_text() for path in (tmp_path / "logs").rglob("*.log"))
    ended = [(tmp_path / f"ended {rank}").exists() for rank in range(2)]
    # Where the launcher is held up between its two signals, the second one comes when that loop has ended by the vote
    # of the first, and Blocks has taken its handler away. With a center the other one saves then.
    assert all(ended) or (way == "async" and any(ended)), out + logs
    assert (tmp_path / "saved.tar").exists()
    assert "Traceback" not in logs or not all(ended), logs


@pytest.mark.parametrize("way", ["sync", pytest.param("async", marks=pytest.mark.promise)])
@pytest.mark.slow
def test_ctrl_c_in_the_last_wait_leaves_time_to_save(run_blocks, tmp_path, way):
    """Blocks has taken its handler away by then."""
    outcome = run_blocks(
        f"""
        import signal
        sync = {way == "sync"}
        together = ParameterSync(None) if sync else ParameterSync(EASGD(), every_n_batches=2)
        rule = AllReduceGradients(Scale(0.1)) if sync else Scale(0.1)
        main_loop = loop(network()[0], shard_stream(stream(80), uneven="drop"), [
            together, FinishAfter(after_n_epochs=1), Checkpoint(tmp + "/saved.tar", save_main_loop=False)], rule)

        from platoon_plugins.blocks.training import END, Training
        meet = Training.meet
        def interrupted(self, point, *args):
            if point == END and rank == 0:
                os.kill(os.getpid(), signal.SIGINT)
            return meet(self, point, *args)
        Training.meet = interrupted
        main_loop.run()
        print("ran to the end")
        """
    )
    outcome.require_success()
    assert (tmp_path / "saved.tar").exists()
    assert "interrupted at its end" in outcome.logs[0]
    assert all("ran to the end" in log for log in outcome.logs)


REFUSED = {
    "two ParameterSync": (
        "[ParameterSync(EASGD()), ParameterSync(EASGD(), name='again')]", "Scale(0.1)", "ParameterSync twice",
    ),
    "a rule and averages": ("[ParameterSync(EASGD())]", "AllReduceGradients(Scale(0.1))", "the workers twice"),
    "neither": ("[StopTogether()]", "Scale(0.1)", "its own model"),
    "other learning rates": (
        "[ParameterSync(None)]", "AllReduceGradients(Scale(0.1 * (rank + 1)))",
        "worker 1 has 0.2 in learning_rate (number 0), and worker 0 0.1; averaged gradients keep models the same only",
    ),
    "other validation data": (
        "[ParameterSync(EASGD()), DistributedMonitoring([cost], stream(24, seed=rank))]", "Scale(0.1)",
        "IndexableDataset with features, targets, given to monitoring DistributedMonitoring differs between rank",
    ),
    "other training data": (
        "[ParameterSync(EASGD())]", "Scale(0.1)", "the streams of main loop 1 differ: worker 0 a part of",
        "network()[0]", "DataStream(data(64), iteration_scheme=ShardedScheme(SequentialScheme(64 - 8 * rank, 8)))",
    ),
    "other rules": (
        "[ParameterSync(EASGD() if rank else ASGD())]", "Scale(0.1)", "worker 0 is at the begin, with ASGD",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_by_every_worker(run_blocks, case):
    defaults = ("network()[0]", "shard_stream(stream(64))")
    extensions, rule, complaint, cost, train = (*case, *defaults[len(case) - 3 :])
    outcome = run_blocks(
        f"""
        from platoon_plugins.blocks import ShardedScheme
        cost, train = {cost}, {train}
        main_loop = loop(cost, train, [*{extensions}, FinishAfter(after_n_batches=4)], {rule})
        main_loop.run()
        """
    )
    assert outcome.result.status == 1
    assert any(complaint in log for log in outcome.logs), outcome.logs


@pytest.mark.parametrize("what", ["parameter", "learning rate"])
def test_models_that_have_become_different_are_noticed_at_the_end_of_an_epoch(run_blocks, what):
    """One worker's extension changes what averaged gradients keep the same, in the middle of the first epoch."""
    outcome = run_blocks(
        f"""
        rule = Scale(0.1)
        main_loop = loop(network()[0], shard_stream(stream(64), uneven="drop"), [], AllReduceGradients(rule))
        changed = main_loop.algorithm.parameters[1] if {what == "parameter"} else rule.learning_rate
        def change(main_loop):
            if rank == 1 and main_loop.status["iterations_done"] == 2:
                changed.set_value(changed.get_value() * 2)
        main_loop.extensions = [ParameterSync(None), Look(after_batch=change), FinishAfter(after_n_epochs=3),
                                Look(after_epoch=lambda main_loop: print("ended", main_loop.status["epochs_done"]))]
        main_loop.run()
        """
    )
    assert outcome.result.status == 1
    for log in outcome.logs:
        assert "the model of main loop 1: some workers got other values than the others" in log
        assert "use the same step rule and learning rate on all of them" in log
        assert "ended 2" not in log


def test_a_period_that_never_comes_is_told(run_blocks):
    outcome = run_blocks(
        """
        main_loop = loop(network()[0], shard_stream(stream(64)), [ParameterSync(EASGD(), every_n_batches=1000),
                                                                  FinishAfter(after_n_batches=3)])
        main_loop.run()
        """
    ).require_success()
    assert "nothing was synchronized in 3 batches" in outcome.logs[0]


def test_a_resumed_job_whose_main_loop_begins_anew_is_told(run_blocks, tmp_path):
    """By the first worker; not where the main loop goes on."""
    script = """
    extensions = [ParameterSync(EASGD()), FinishAfter(after_n_batches=3)]
    loop(network()[0], shard_stream(stream(64)), extensions).run()
    """
    folder, logs = CheckpointFolder(tmp_path / "kept"), []
    for _ in range(2):
        outcome = run_blocks(script, resume=folder.newest(), saving=Saving(folder, 1000.0))
        logs.append(outcome.require_success().logs)
    folder.close()
    told = "was at epoch 1, and its main loop starts at the first"
    assert [log.count(told) for log in (*logs[0], *logs[1])] == [0, 0, 1, 0]


def test_a_stream_that_nobody_has_sharded_is_told(run_blocks):
    """Once, where all workers train on the same rows; not where each has made its own."""
    outcome = run_blocks(
        """
        for train in (stream(64), stream(64, seed=rank), shard_stream(stream(64))):
            loop(network()[0], train, [ParameterSync(EASGD()), FinishAfter(after_n_batches=1)], Scale(0.0)).run()
        """
    ).require_success()
    assert [log.count("the 2 workers train on the same data") for log in outcome.logs] == [1, 0]
    assert "shard_stream(stream)" in outcome.logs[0]


@pytest.mark.promise
def test_a_job_that_stops_ends_the_main_loops_at_an_epoch():
    training = Mock(ended=False, worker=Mock(should_stop=True))
    training.meet.return_value = None
    stopping = type("Stopping", (StopTogether,), {"training": training})()
    status = dict.fromkeys(("epoch_interrupt_received", "batch_interrupt_received"), False)
    stopping.main_loop = Mock(log=Mock(current_row={}), status=status)
    stopping.after_epoch()
    training.meet.assert_called_once_with("the end of an epoch", Vote.END)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: ParameterSync(EASGD), "rule=<class .*EASGD.*pass a rule"),
        (lambda: ParameterSync("EASGD"), "rule='EASGD': pass a rule"),
        (lambda: ParameterSync(EASGD(), every_n_batches=0), "every_n_batches=0"),
        (lambda: ParameterSync(EASGD(), every_n_batches=2.5), "every_n_batches=2.5"),
        (lambda: ParameterSync(EASGD(), every_n_epochs=-1), "counts epochs"),
        (lambda: ParameterSync(EASGD(), after_batch=False), "never synchronize during training"),
        (lambda: ParameterSync(EASGD(), before_training=True), "never synchronize during training"),
        (lambda: ParameterSync(EASGD(), before_first_epoch=True), "never synchronize during training"),
        (lambda: ParameterSync(None, every_n_batches=10), "no rule"),
        (lambda: ParameterSync(EASGD(), on_nonfinite="ignore"), "on_nonfinite"),
        (lambda: ParameterSync(None, on_nonfinite="skip"), "RemoveNotFinite"),
        (lambda: ParameterSync(EASGD(), leader_only=Scale), "tuple of classes"),
        (lambda: StopTogether(policy="most"), "any, all, leader"),
        (lambda: AllReduceGradients(0.1), "step rule"),
        (lambda: AllReduceGradients(Scale), "step rule"),
    ],
)
def test_bad_arguments_are_refused(call, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        call()


@pytest.mark.slow
def test_workers_that_get_the_same_batches_stop_after_the_same_one(run_blocks):
    run_blocks(
        """
        stop = [FinishAfter(after_n_batches=3)] if rank == 0 else []
        train = shard_stream(stream(80), mode="broadcast")
        together = ParameterSync(EASGD(), every_n_batches=2)
        main_loop = loop(network()[0], train, [together, StopTogether(policy="any"), *stop])
        main_loop.run()
        assert main_loop.status["iterations_done"] == 3
        assert (everyones(values(main_loop)) == values(main_loop)).all()
        """
    ).require_success()
