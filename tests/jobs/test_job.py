"""Jobs of real processes, real sockets and real shared memory, on NumPy parameters."""

import os
import signal

import numpy as np
import pytest

from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.job import host_job

pytestmark = pytest.mark.base


def test_a_worker_with_easgd_follows_the_equations_step_by_step(run_job, tmp_path):
    run_job(
        """
        import sys
        import numpy as np
        from platoon_base import EASGD, connect

        rng = np.random.default_rng(5)
        x = [rng.standard_normal((37, 11)).astype("float32"), rng.standard_normal(5)]
        with connect() as worker:
            worker.init_shared_params(x, EASGD(0.3))
            history = []
            for step in range(12 * (worker.global_rank == 0)):
                for array in x:
                    array -= (0.1 * rng.standard_normal(array.shape)).astype(array.dtype)
                if step % 3 == 2:
                    worker.sync_params()
                with worker.center_params():
                    center = [array.copy() for array in x]
                history.append([array.copy() for array in x] + center)
        named = {f"{i}_{j}": a for i, row in enumerate(history) for j, a in enumerate(row)}
        if named:
            np.savez(sys.argv[1] + "/history.npz", **named)
        """
    ).require_success()
    history = np.load(tmp_path / "history.npz")

    rng = np.random.default_rng(5)
    x = [rng.standard_normal((37, 11)).astype("float32"), rng.standard_normal(5)]
    c = [array.copy() for array in x]
    for step in range(12):
        x = [a - (0.1 * rng.standard_normal(a.shape)).astype(a.dtype) for a in x]
        if step % 3 == 2:
            d = [a.dtype.type(0.3) * (a - b) for a, b in zip(x, c)]
            x = [a - e for a, e in zip(x, d)]
            c = [b + e for b, e in zip(c, d)]
        for j, expected in enumerate([*x, *c]):
            np.testing.assert_array_equal(history[f"{step}_{j}"], expected)


def test_every_update_of_four_workers_reaches_the_center(run_job):
    outcome = run_job(
        """
        import numpy as np
        from platoon_base import ASGD, connect

        x = np.full(700_001, 5.0, "float32")
        with connect() as worker:
            worker.init_shared_params([x], ASGD())
            for step in range(25):
                x += 2 ** worker.global_rank
                worker.sync_params()
            worker.barrier()
            worker.copy_to_local()
            assert (x == 5 + 25 * (1 + 2 + 4 + 8)).all(), np.unique(x)
            worker.report({f"rank {worker.global_rank}": "ok"})
        """,
        workers=4,
    ).require_success()
    assert len(outcome.reported) == 4


def test_the_first_workers_values_are_given_to_all(run_job):
    outcome = run_job(
        """
        import numpy as np
        from platoon_base import EASGD, connect

        with connect() as worker:
            x = np.full(10, 1.0 + worker.global_rank)
            worker.init_shared_params([x], EASGD())
            assert len(set(x)) == 1
            worker.report({str(worker.global_rank): x[0]})
        """,
        workers=3,
    ).require_success()
    assert len(outcome.reported) == 3
    assert set(outcome.reported.values()) in ({1.0}, {2.0}, {3.0}), "whoever was the first"


def test_a_late_worker_joins_and_starts_from_the_center(run_job):
    outcome = run_job(
        """
        import os, subprocess, sys
        import numpy as np
        from platoon_base import EASGD, connect

        late = "PLATOON_RANK" not in os.environ
        x = np.full(1000, 100.0 if late else 3.0)
        with connect() as worker:
            worker.init_shared_params([x], EASGD(0.5))
            if late:
                assert (x == 7.0).all(), x
                assert worker.global_rank == 2
                x += 4
                worker.sync_params()  # d = 2
                worker.report({"late": "done"})
            else:
                if worker.global_rank == 0:
                    x[:] = 7.0
                    worker.copy_to_global()
                    environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
                    subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
                worker.barrier("joined and gone")
                worker.copy_to_local()
                assert (x == 9.0).all(), x
        """
    ).require_success()
    assert outcome.reported == {"late": "done"}


def test_a_worker_may_leave_and_the_others_go_on(run_job):
    run_job(
        """
        import numpy as np
        from platoon_base import EASGD, connect

        x = np.zeros(100)
        with connect() as worker:
            worker.init_shared_params([x], EASGD())
            for step in range(3 if worker.global_rank == 1 else 10):
                worker.sync_params()
            if worker.global_rank != 1:
                worker.barrier()
                assert worker.reduce_metrics({"m": (worker.global_rank + 1.0, 1)}) == {"m": 2.0}
        """,
        workers=3,
    ).require_success()


@pytest.mark.parametrize(
    ("late_model", "complaint"),
    [
        ("[np.zeros((3, 4))]", "got 1 parameters, the job's model has 2"),
        ("[np.zeros((4, 3)), np.zeros(2)]", "parameter 0"),
        ("[np.zeros((3, 4)), np.zeros(2, 'float32')]", "float32"),
    ],
)
def test_a_worker_with_another_model_is_refused_and_the_job_goes_on(run_job, late_model, complaint):
    outcome = run_job(
        f"""
        import numpy as np
        from platoon_base import EASGD, connect
        from platoon_base.errors import LayoutMismatchError

        with connect() as worker:
            if worker.global_rank == 0:
                worker.init_shared_params([np.zeros((3, 4)), np.zeros(2)], EASGD())
                worker.barrier("center is there")
                worker.barrier("other has tried")
                worker.sync_params()
            else:
                worker.barrier("center is there")
                try:
                    worker.init_shared_params({late_model}, EASGD())
                except LayoutMismatchError as exc:
                    worker.report({{"error": str(exc)}})
                worker.barrier("other has tried")
        """
    ).require_success()
    assert complaint in outcome.reported["error"]


def test_metrics_of_unequal_shards_are_those_of_one_process_on_all_the_data(run_job):
    outcome = run_job(
        """
        import numpy as np
        from platoon_base import connect

        values = np.random.default_rng(1).lognormal(size=1003)
        with connect() as worker:
            mine = worker.shard(values)
            mean = worker.reduce_metrics({"mean": (mine.sum(), len(mine)), f"only {worker.global_rank}": (1.0, 2)})
            worker.report({f"mean {worker.global_rank}": mean["mean"], "names": ",".join(sorted(mean))})
        """,
        workers=3,
    ).require_success()
    expected = np.random.default_rng(1).lognormal(size=1003).mean()
    for rank in range(3):
        assert outcome.reported[f"mean {rank}"] == pytest.approx(expected, rel=1e-12)
    assert outcome.reported["names"] == "mean,only 0,only 1,only 2"


@pytest.mark.parametrize(("policy", "voters"), [("any", "1"), ("all", "0 1 2"), ("leader", "0")])
def test_the_vote_that_suffices_stops_all(run_job, policy, voters):
    outcome = run_job(
        """
        import sys
        from platoon_base import connect

        policy, voters = sys.argv[2], [int(v) for v in sys.argv[3].split()]
        with connect() as worker:
            assert not worker.should_stop
            worker.barrier()
            if worker.global_rank in voters:
                worker.request_stop("enough", policy=policy)
            worker.barrier()
            assert worker.should_stop
            assert worker.stop_reason == "enough"
        """,
        workers=3,
        args=(policy, voters),
    ).require_success()
    assert outcome.result.stopped_by == "enough"


def test_a_vote_that_does_not_suffice_stops_nobody(run_job):
    run_job(
        """
        from platoon_base import connect

        with connect() as worker:
            if worker.global_rank == 1:
                worker.request_stop("enough", policy="leader")
            worker.barrier()
            assert not worker.should_stop
            worker.barrier()
        """
    ).require_success()


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("policy", ["raise", "skip", "restore"])
def test_what_is_not_finite_never_reaches_the_center(run_job, bad, policy):
    run_job(
        """
        import sys
        import numpy as np
        from platoon_base import EASGD, connect
        from platoon_base.errors import NonFiniteError

        bad, policy = float(sys.argv[2]), sys.argv[3]
        x = np.ones(20_000, "float32")
        with connect() as worker:
            worker.init_shared_params([x], EASGD(0.5), on_nonfinite=policy)
            if worker.global_rank == 0:
                x[:] = 3
                x[12_345] = bad
                try:
                    worker.sync_params()
                    assert policy != "raise"
                except NonFiniteError as exc:
                    assert policy == "raise"
                    assert "rank 0" in str(exc) and "12345" in str(exc) and "parameter 0" in str(exc), exc
                assert np.isfinite(x).all() == (policy == "restore")
            worker.barrier()
            if worker.global_rank == 1:
                worker.copy_to_local()
                assert np.isfinite(x).all()
                assert x[0] == 2 and x[12_345] == 1 and x[-1] == 2
            worker.barrier()
        """,
        args=(bad, policy),
    ).require_success()


def test_a_wait_in_vain_names_the_ranks_that_are_missing(run_job, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    run_job(
        """
        import os, sys
        from pathlib import Path
        from platoon_base import connect
        from platoon_base.errors import CollectiveTimeoutError

        fifo = Path(sys.argv[1], "fifo")
        with connect() as worker:
            if worker.global_rank == 0:
                try:
                    worker.barrier("lonely", timeout_s=0.2)
                except CollectiveTimeoutError as exc:
                    assert "rank 1" in str(exc) and "lonely" in str(exc), exc
                else:
                    raise AssertionError("nobody else came, and yet it went on")
                fifo.write_text("go on")
            else:
                fifo.read_text()
            worker.barrier("end")
        """
    ).require_success()


def test_workers_that_wait_for_different_things_are_told_at_once(run_job):
    outcome = run_job(
        """
        from platoon_base import connect
        from platoon_base.errors import ProtocolError

        with connect() as worker:
            try:
                worker.barrier("this" if worker.global_rank else "that")
            except ProtocolError as exc:
                worker.report({str(worker.global_rank): str(exc)})
        """
    ).require_success()
    for rank in "01":
        assert "rank 0 in 'barrier that', rank 1 in 'barrier this'" in outcome.reported[rank]


def test_all_leave_a_loop_in_the_same_round(run_job):
    outcome = run_job(
        """
        from platoon_base import connect

        with connect() as worker:
            for epoch in range(1000):
                if worker.global_rank == 1 and epoch == 7:
                    worker.request_stop("enough")
                worker.reduce_metrics({"m": (1.0, 1)})
                if worker.agree_to_stop():
                    break
            assert worker.reduce_metrics({"epochs": (epoch, 1)}) == {"epochs": 7}
            worker.report({str(worker.global_rank): epoch})
        """,
        workers=3,
    ).require_success()
    assert outcome.reported == {"0": 7, "1": 7, "2": 7}


def test_a_late_worker_falls_into_step_with_the_others(run_job):
    """It skips the barrier that they have passed, and takes part in the sums from the next one on."""
    outcome = run_job(
        """
        import os, subprocess, sys
        from platoon_base import connect

        late = "PLATOON_RANK" not in os.environ
        with connect() as worker:
            worker.barrier("compiled")
            if worker.global_rank == 0:
                environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
                other = subprocess.Popen([sys.executable, *sys.argv], env=environment)
            while True:
                weight = worker.advanced.sum_pairs("epoch", {"n": (1.0, 1.0)})[0]["n"][1]
                if weight == 3:
                    worker.request_stop("all there")
                if worker.agree_to_stop():
                    break
            worker.report({str(worker.global_rank): worker.advanced.sum_pairs("end", {"n": (1.0, 1.0)})[0]["n"][1]})
            if worker.global_rank == 0:
                assert other.wait(60) == 0
        """
    ).require_success()
    assert outcome.reported == {"0": 3.0, "1": 3.0, "2": 3.0}


def test_a_forked_child_of_a_worker_ends_without_disturbing_it(run_job):
    run_job(
        """
        import os, sys
        import numpy as np
        from platoon_base import EASGD, connect

        worker = connect()
        worker.init_shared_params([np.zeros(1000)], EASGD())
        if os.fork() == 0:
            sys.exit(0)
        assert os.wait()[1] == 0
        worker.sync_params()
        worker.barrier()
        """
    ).require_success()


def test_a_joiner_that_says_it_is_the_controller_is_not_believed(run_job):
    run_job(
        """
        import os
        import msgspec, zmq
        from platoon_base import connect
        from platoon_base.coordination.messages import PROTOCOL

        hello = {"type": "hello", "protocol": PROTOCOL, "pid": os.getppid(), "host": "here", "device": "cpu"}
        hello["pid_namespace"] = os.stat("/proc/self/ns/pid").st_ino
        with connect() as worker, zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(f"ipc://{os.environ['PLATOON_JOB']}/control")
            stranger.send(b"12345678" + msgspec.msgpack.encode(hello))
            assert stranger.poll(10_000)
            stranger.recv()
            worker.reduce_metrics({"x": (1.0, 1.0)})   # it is gone, and so nobody waits for it
        """,
        1,
    )  # that it ends at all is the test: nobody waits for the controller to end


@pytest.mark.parametrize("pid", [0, -1, 2**40])
def test_an_impossible_process_id_harms_nobody(run_job, pid):
    run_job(
        """
        import os, socket, sys
        import msgspec, zmq
        from platoon_base import connect
        from platoon_base.coordination.messages import PROTOCOL

        hello = {"type": "hello", "protocol": PROTOCOL, "pid": int(sys.argv[2]), "host": "here", "device": "cpu"}
        with connect() as worker, zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(f"ipc://{os.environ['PLATOON_JOB']}/control")
            stranger.send(b"12345678" + msgspec.msgpack.encode(hello))
            assert stranger.poll(10_000)
            assert msgspec.msgpack.decode(stranger.recv()[8:])["type"] == "failure"
            worker.barrier()
        """,
        args=(str(pid),),
    ).require_success()


def test_parameters_that_change_their_shape_are_refused_and_the_center_stays(run_job):
    run_job(
        """
        import numpy as np
        from platoon_base import EASGD, connect
        from platoon_base.errors import LayoutMismatchError

        with connect() as worker:
            x = np.zeros((3, 4))
            worker.init_shared_params([x], EASGD(0.5))
            for wrong in ([np.ones((5, 4))], [np.ones((4, 3))], [np.ones((3, 4), "float32")], [np.ones((3, 4))] * 2):
                try:
                    worker.advanced.sync_arrays(wrong)
                except LayoutMismatchError:
                    continue
                raise AssertionError(wrong)
            worker.barrier("all were refused")
            worker.sync_params()
            with worker.center_params():
                assert not x.any(), x
        """
    ).require_success()


def test_if_the_creator_of_the_center_fails_another_one_makes_it(run_job):
    outcome = run_job(
        """
        import numpy as np
        from platoon_base import EASGD, connect
        from platoon_base.centers.host import HostCenters

        with connect() as worker:
            real = HostCenters.create
            def fail(*args):
                if worker.global_rank == 0:
                    raise OSError("no room")
                return real(*args)
            HostCenters.create = fail
            if worker.global_rank == 1:
                worker.barrier("first has failed")
            try:
                worker.init_shared_params([np.zeros(10)], EASGD())
                worker.report({"shares": worker.global_rank})
            except OSError:
                worker.barrier("first has failed")
        """
    ).require_success()
    assert outcome.reported == {"shares": 1}


def test_a_worker_killed_in_the_middle_does_not_stop_the_others_nor_go_unnoticed(run_job):
    outcome = run_job(
        """
        import os, signal
        import numpy as np
        from platoon_base import EASGD, connect

        x = np.zeros(1000)
        with connect() as worker:
            worker.init_shared_params([x], EASGD())
            worker.barrier()
            if worker.global_rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            for step in range(20):
                worker.sync_params()
            worker.barrier("survivors")
            worker.report({"done": 1})
        """,
        workers=3,
    )
    assert outcome.reported == {"done": 1}
    assert outcome.result.status == 128 + signal.SIGKILL


def test_a_lock_on_a_stripe_dies_with_its_holder(run_job):
    outcome = run_job(
        """
        import os, signal
        import numpy as np
        from platoon_base import EASGD, connect
        from watching import center_of

        class Mortal(EASGD):
            kernel = None
            def sync(self, *arrays):
                if doomed:
                    os.kill(os.getpid(), signal.SIGKILL)
                super().sync(*arrays)

        x, doomed = np.zeros(1000), False
        with connect() as worker:
            worker.init_shared_params([x], Mortal(0.5))
            worker.barrier("both here")
            if worker.global_rank == 1:
                x[:] = 1
                doomed = True
                worker.sync_params()
            worker.barrier("other is dead")
            with center_of([x], Mortal(0.5)) as center:
                assert center.holder(0) == 1, "it did not die while it held the stripe"
            x[:] = 1
            worker.sync_params(timeout_s=20)
            assert (x == 0.5).all()
            worker.report({"done": 1})
        """
    )
    assert outcome.reported == {"done": 1}, outcome.logs
    assert outcome.result.status == 128 + signal.SIGKILL


def test_a_stopped_worker_that_holds_a_stripe_does_not_stop_the_others(run_job):
    """It goes on only after the others have made their steps; then what they left out is caught up with."""
    run_job(
        """
        import os, signal
        import numpy as np
        from platoon_base import ASGD, connect
        from watching import exchange_pids, is_stopped, progress, until

        class Stops(ASGD):
            kernel = None if os.environ["PLATOON_RANK"] == "0" else "asgd"
            def sync(self, *arrays):
                global stopped
                if not stopped:
                    stopped = True
                    os.kill(os.getpid(), signal.SIGSTOP)
                super().sync(*arrays)

        worker, stopped = connect(), False
        x = np.zeros(3_000_000)
        worker.init_shared_params([x], Stops())
        pids = exchange_pids(worker)
        if worker.global_rank == 0:
            worker.sync_params()
            assert stopped
        else:
            try:
                until(lambda: is_stopped(pids[0]))
                for _ in range(100):
                    x += 1
                    worker.sync_params()
                with worker.center_params():         # reads it without waiting for ever
                    held = x == 0
                    assert 0 < held.sum() < x.size and (x[~held] >= 100).all(), (held.sum(), np.unique(x))
                if worker.global_rank == 1:
                    until(lambda: progress(2).syncs == 100)
            finally:
                if worker.global_rank == 1:
                    os.kill(pids[0], signal.SIGCONT)
        worker.barrier("all go on")
        worker.sync_params()
        worker.barrier("all have synchronized")
        worker.copy_to_local()
        assert (x == 200).all(), (x.min(), x.max())
        """,
        workers=3,
    ).require_success()


def test_the_worst_exit_status_is_the_jobs(run_job):
    outcome = run_job(
        """
        import sys
        from platoon_base import connect

        sys.exit([0, 7, 3][connect().global_rank])
        """,
        workers=3,
    )
    assert outcome.result.status == 7


def test_parameters_are_their_own_again_even_if_the_center_cannot_be_read(run_job):
    run_job(
        """
        import numpy as np
        from platoon_base import EASGD, connect
        from platoon_base.errors import CollectiveTimeoutError

        class Dawdler(EASGD):
            kernel = None
            def sync(self, *arrays):
                global dawdled
                if not dawdled:
                    dawdled = True
                    worker.barrier("held")
                    worker.barrier("tried")
                super().sync(*arrays)

        n, dawdled = 3_000_000, False  # several stripes
        with connect() as worker:
            x = np.zeros(n, "float32")
            worker.init_shared_params([x], Dawdler(0.5))
            x[:] = 7
            worker.barrier("there")
            if worker.global_rank == 0:
                worker.sync_params()
                assert dawdled
            else:
                worker.barrier("held")
                try:
                    with worker.center_params(timeout_s=0.1):
                        raise AssertionError("a stripe is held by another")
                except CollectiveTimeoutError as exc:
                    assert "rank 0 holds" in str(exc), exc
                    assert (x == 7).all()
                worker.barrier("tried")
        """
    ).require_success()


def test_clean_spares_the_center_of_a_job_whose_workers_have_left(run_job):
    outcome = run_job(
        """
        import os
        import numpy as np
        from platoon_base import EASGD, connect
        from platoon_base.job.files import JobFiles, leftovers

        files = JobFiles.read(os.environ["PLATOON_JOB"])
        with connect() as worker:
            worker.init_shared_params([np.zeros(10)], EASGD())
        center = f"/dev/shm{files.center}"
        os.utime(center, (0, 0))
        assert center not in [str(leftover.path) for leftover in leftovers()]
        """,
        workers=1,
    )
    outcome.require_success()


def test_garbage_on_the_control_socket_is_answered_and_harms_nobody(run_job):
    outcome = run_job(
        r"""
        import os, json
        import msgspec, zmq
        from platoon_base import connect

        with connect() as worker:
            folder = os.environ["PLATOON_JOB"]
            with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
                socket.linger = 0
                socket.connect(f"ipc://{folder}/control")
                pack, name = msgspec.msgpack.encode, b"12345678"
                frames = [
                    [b""], [b"\xff"], [name], [name + b"\xff\xfe"], [name + b"{not json"], [name, b"2", b"3", b"4"],
                    [name + pack({"type": "no such"})], [name + pack({"type": "reduce"})], [name + b"x" * (1 << 21)],
                    [name + pack({"type": "vote", "reason": "a stranger", "policy": "any"})],
                ]
                for message in frames:
                    socket.send_multipart(message)
                for message in frames:
                    assert socket.poll(10_000), message
                    answer = msgspec.msgpack.decode(socket.recv()[8:])
                    assert answer["type"] == "failure", (message, answer)
            worker.barrier()
            assert not worker.should_stop
        """
    ).require_success()
    assert outcome.result.stopped_by == "end of script"


def test_the_users_handler_answers_and_its_errors_are_the_askers(run_job):
    def handler(req, rank, info):
        if req == "next":
            return {"from": rank, "twice": [2 * i for i in info]}
        raise KeyError(req)

    run_job(
        """
        from platoon_base import connect
        from platoon_base.errors import ConfigurationError, ProtocolError

        with connect() as worker:
            assert worker.send_req("next", [1, 2]) == {"from": worker.global_rank, "twice": [2, 4]}
            for req, error in (("unheard of", ProtocolError), ("platoon-init", ConfigurationError)):
                try:
                    worker.send_req(req)
                except error as exc:
                    assert req in str(exc)
                else:
                    raise AssertionError(req)
            assert worker.send_req("next", []) == {"from": worker.global_rank, "twice": []}
        """,
        handler=handler,
    ).require_success()


def test_the_advisory_lock_keeps_others_out(run_job, tmp_path):
    run_job(
        """
        import sys
        from pathlib import Path
        from platoon_base import connect

        counter = Path(sys.argv[1]) / "counter"
        counter.touch()
        with connect() as worker:
            worker.barrier()
            for _ in range(200):
                worker.lock()
                try:
                    counter.write_text(str(int(counter.read_text() or 0) + 1))
                finally:
                    worker.unlock()
        """,
        workers=3,
    ).require_success()
    assert (tmp_path / "counter").read_text() == "600"


def test_ranks_sizes_and_seeds(run_job):
    outcome = run_job(
        """
        from platoon_base import connect

        with connect() as worker:
            assert connect() is worker
            assert (worker.global_size, worker.local_size, worker.seed) == (3, 3, 42)
            assert worker.local_rank == worker.global_rank
            worker.report({str(worker.global_rank): worker.shard_seed})
        """,
        workers=3,
        seed=42,
    ).require_success()
    assert sorted(outcome.reported) == ["0", "1", "2"]
    assert len(set(outcome.reported.values())) == 3


def test_a_rank_joins_once(run_job):
    run_job(
        """
        import os, subprocess, sys
        from platoon_base import connect

        if len(sys.argv) > 2:
            connect()
        with connect() as worker:
            again = subprocess.run([sys.executable, *sys.argv, "again"], capture_output=True, text=True)
            assert again.returncode == 1
            assert f"rank {worker.global_rank} is taken by process {os.getpid()}" in again.stderr, again.stderr
        """
    ).require_success()


def test_without_a_controller_workers_stop_and_tidy_up(write_script, tmp_path):
    import subprocess
    import sys

    script = write_script(
        """
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        from platoon_base import EASGD, connect
        from platoon_base.errors import WorkerLostError

        x = np.zeros(100)
        with connect() as worker:
            worker.init_shared_params([x], EASGD())
            if worker.global_rank == 0:
                Path(sys.argv[1], "other").read_text()  # waits until the other is there too
                os.kill(os.getppid(), signal.SIGKILL)
            else:
                Path(sys.argv[1], "other").write_text("here")
            while not worker.should_stop:
                pass
            try:
                worker.sync_params()
            except WorkerLostError as exc:
                Path(sys.argv[1], f"lost{worker.global_rank}").write_text(str(exc))
        Path(sys.argv[1], f"end{worker.global_rank}").touch()
        Path(sys.argv[1], f"fifo{worker.global_rank}").open("w").close()
        """
    )
    for name in ("fifo0", "fifo1", "other"):
        os.mkfifo(tmp_path / name)
    launched = subprocess.run(
        [sys.executable, "-m", "platoon_base", "launch", "-n", "2", str(script), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert launched.returncode == -signal.SIGKILL
    for rank in range(2):
        (tmp_path / f"fifo{rank}").read_text()  # waits for the worker's last line
        assert "controller" in (tmp_path / f"lost{rank}").read_text()


@pytest.mark.parametrize("size", [0, -1, 100_000])
def test_a_job_of_an_impossible_size_is_refused(size):
    with pytest.raises(ConfigurationError, match=str(size)), host_job(size):
        pass


def test_a_variable_that_names_no_job_is_an_error_and_not_a_job_of_one(monkeypatch, tmp_path):
    from platoon_base import connect

    monkeypatch.setenv("PLATOON_JOB", str(tmp_path))
    with pytest.raises(PlatoonError, match="unset it to run alone"):
        connect()


def test_a_worker_that_fails_while_it_joins_ends(run_job):
    """What it has opened by then is closed, and the job ends with its status."""
    outcome = run_job(
        """
        from platoon_base.job import attaching, joining

        def fail(*args, **kwargs):
            raise RuntimeError("oops")

        attaching.Worker = fail
        joining.connect()
        """,
        workers=1,
    )
    assert outcome.result.status == 1
    assert "RuntimeError: oops" in outcome.logs[0]


# Sums of arrays.


def test_arrays_are_summed_to_the_same_bits_on_every_worker(run_job, tmp_path):
    outcome = run_job(
        """
        import sys
        import numpy as np
        from platoon_base import connect

        with connect() as worker:
            rank = worker.global_rank
            rng = np.random.default_rng(rank)
            mine = [rng.standard_normal((3, 5)).astype("float32"), np.array(rank), rng.random(4) < 0.5,
                    np.array([np.nan, np.inf, 1.0 - 2 * (rank == 2)]) / [1, 1, 0 * rank], rng.standard_normal(150_000)]
            total = worker.advanced.sum_arrays("states", mine, {"m": (rank + 1.0, 2.0)})
            assert (total.pairs, total.ranks, total.stop) == ({"m": (6.0, 6.0)}, [0, 1, 2], ""), total
            np.savez(sys.argv[1] + f"/{rank}.npz", *total.arrays)
            np.savez(sys.argv[1] + f"/mine{rank}.npz", *mine)
            assert worker.advanced.sum_arrays("states", []).arrays == []
        """,
        workers=3,
    ).require_success()
    assert outcome.result.status == 0
    mine = [np.load(tmp_path / f"mine{rank}.npz") for rank in range(3)]
    sums = [np.load(tmp_path / f"{rank}.npz") for rank in range(3)]
    for name in mine[0]:
        with np.errstate(invalid="ignore"):
            expected = mine[0][name].astype(float) + mine[1][name] + mine[2][name]
        for found in sums:
            np.testing.assert_array_equal(found[name], expected)
            assert found[name].tobytes() == sums[0][name].tobytes()


@pytest.mark.parametrize("when", ["before", "between two parts", "in the last part"])
def test_a_sum_of_arrays_is_of_the_survivors_whenever_one_dies(run_job, when):
    outcome = run_job(
        """
        import os, signal, sys
        import numpy as np
        from platoon_base import connect
        from platoon_base.channels.client import ControlClient

        when = sys.argv[2]
        with connect() as worker:
            worker.barrier()
            if worker.global_rank == 1:
                real = ControlClient.wait_for_all
                def wait_for_all(client, call, expected):
                    last = {"before": "states", "between two parts": "part 2", "in the last part": "part 4 of 4"}[when]
                    if last in call.title:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(client, call, expected)
                ControlClient.wait_for_all = wait_for_all
            mine = np.arange(200_000.0) * 10**worker.global_rank
            total = worker.advanced.sum_arrays("states", [mine], {"ranks": (10.0**worker.global_rank, 1)})
            assert total.ranks == [0, 2]
            assert total.pairs == {"ranks": (101.0, 2.0)}
            np.testing.assert_array_equal(total.arrays[0], np.arange(200_000.0) * 101)
            worker.report({str(worker.global_rank): "ok"})
        """,
        workers=3,
        args=(when,),
    )
    assert outcome.reported == {"0": "ok", "2": "ok"}, outcome.logs
    assert outcome.result.status == 128 + signal.SIGKILL


def test_arrays_of_different_shapes_are_refused_on_every_worker(run_job):
    outcome = run_job(
        """
        import numpy as np
        from platoon_base import connect
        from platoon_base.errors import LayoutMismatchError

        with connect() as worker:
            try:
                worker.advanced.sum_arrays("states", [np.ones((3, 30_000 if worker.global_rank else 20_000))])
            except LayoutMismatchError as exc:
                worker.report({str(worker.global_rank): str(exc)})
            assert worker.advanced.sum_arrays("states", [np.ones(3)]).arrays[0].tolist() == [3.0] * 3
        """,
        workers=3,
    ).require_success()
    expected = "rank 0: 60000 values in 1 arrays ((3, 20000)); ranks 1, 2: 90000 values in 1 arrays ((3, 30000))"
    assert len(outcome.reported) == 3
    assert all(expected in text for text in outcome.reported.values()), outcome.reported


def test_values_of_all_workers_are_gathered_by_rank(run_job):
    outcome = run_job(
        """
        import math, os, signal
        from platoon_base import connect
        from platoon_base.errors import ConfigurationError

        with connect() as worker:
            rank = worker.global_rank
            everybody = worker.gather([rank, f"worker {rank}", rank / 2, None])
            assert everybody == [[r, f"worker {r}", r / 2, None] for r in range(4)], everybody
            try:
                worker.gather("x" * (3000 if rank == 2 else 3), name="one is too large")
            except ConfigurationError as exc:
                assert "limit is 2048" in str(exc) and rank == 2
                worker.gather("", name="one is too large")
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            assert worker.gather(rank) == [0, 2, 3]
            if rank == 0:
                worker.close()
            else:
                assert worker.gather({"rank": rank, "loss": math.inf}) == [
                    {"rank": 2, "loss": math.inf}, {"rank": 3, "loss": math.inf}
                ]
                worker.report({str(rank): "ok"})
        """,
        workers=4,
    )
    assert outcome.reported == {"2": "ok", "3": "ok"}, outcome.logs
    assert outcome.result.status == 128 + signal.SIGKILL


def test_a_late_worker_is_waited_for_once_it_has_gathered_with_the_others(run_job):
    outcome = run_job(
        """
        import os, subprocess, sys
        from platoon_base import connect

        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        with connect() as worker:
            if worker.late:
                assert worker.gather("late") == ["first", "second", "late"]
                assert worker.gather(2) == [0, 1, 2]
            else:
                mine = ["first", "second"][worker.global_rank]
                if worker.global_rank == 0:
                    late = subprocess.Popen([sys.executable, *sys.argv], env=environment)
                while len(gathered := worker.gather(mine)) < 3:
                    assert gathered == ["first", "second"]
                assert gathered == ["first", "second", "late"]
                assert worker.gather(worker.global_rank) == [0, 1, 2]
            worker.report({str(worker.global_rank): "ok"})
            if worker.global_rank == 0:
                assert late.wait(60) == 0
        """
    ).require_success()
    assert outcome.reported == dict.fromkeys("012", "ok")


# Sharing several times.


def test_parameters_are_released_and_others_shared_under_another_rule(run_job):
    outcome = run_job(
        """
        import os
        import numpy as np
        from platoon_base import ASGD, EASGD, connect

        with connect() as worker:
            rank = worker.global_rank
            worker.release_shared_params()
            x, y = np.full(1000, 2.0), np.full((700, 1001), 5.0, "float32")
            worker.init_shared_params([x], EASGD(0.5))
            if rank == 0:
                x += 4
                worker.sync_params()  # d = 2
                assert (x == 4).all()
            worker.barrier("synchronized")
            worker.copy_to_local()
            assert (x == 4).all()
            worker.release_shared_params()
            assert not worker.advanced.shares
            job = os.path.basename(os.environ["PLATOON_JOB"])
            assert not [name for name in os.listdir("/dev/shm") if job in name and name.endswith("-center")]
            worker.barrier("seen")
            x += rank
            for fold in range(5):
                y[:] = 5
                worker.init_shared_params([y, np.ones(fold + 1)][: fold % 2 + 1], ASGD())
                assert (y == 5).all()
                worker.barrier("all start from the first values")
                for step in range(3):
                    y += 2**rank
                    worker.sync_params()
                worker.barrier("trained")
                worker.copy_to_local()
                assert (y == 5 + 3 * (1 + 2 + 4)).all(), np.unique(y)
                worker.release_shared_params()
            assert (x == 4 + rank).all(), "what was released is nobody else's"
            worker.report({str(rank): "ok"})
        """,
        workers=3,
    ).require_success()
    assert len(outcome.reported) == 3


@pytest.mark.parametrize("when", ["while it shares", "in the release"])
def test_survivors_of_a_death_release_and_share_again(run_job, when):
    outcome = run_job(
        """
        import os, signal, sys
        import numpy as np
        from platoon_base import ASGD, EASGD, connect
        from platoon_base.channels.client import ControlClient

        with connect() as worker:
            rank = worker.global_rank
            x, y = np.zeros(1000), np.full(77, 3.0, "float32")
            worker.init_shared_params([x], EASGD(0.5))
            worker.barrier("all share")
            if rank == 1:
                if sys.argv[2] == "while it shares":
                    os.kill(os.getpid(), signal.SIGKILL)
                ControlClient.wait_for_all = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
            for step in range(20):
                worker.sync_params()
            worker.release_shared_params()
            worker.init_shared_params([y, x], ASGD())
            worker.barrier("survivors share")
            y += 10**rank
            worker.sync_params()
            worker.barrier("survivors trained")
            worker.copy_to_local()
            assert (y == 3 + 1 + 100).all(), np.unique(y)
            worker.report({str(rank): "ok"})
        """,
        workers=3,
        args=(when,),
    )
    assert outcome.reported == {"0": "ok", "2": "ok"}, outcome.logs
    assert outcome.result.status == 128 + signal.SIGKILL


def test_a_release_in_vain_names_who_is_missing_and_leaves_the_parameters_shared(run_job, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    run_job(
        """
        import sys
        from pathlib import Path
        import numpy as np
        from platoon_base import ASGD, connect
        from platoon_base.errors import CollectiveTimeoutError

        fifo, x = Path(sys.argv[1], "fifo"), np.zeros(10)
        with connect() as worker:
            worker.init_shared_params([x], ASGD())
            if worker.global_rank == 0:
                try:
                    worker.release_shared_params(timeout_s=0.2)
                except CollectiveTimeoutError as exc:
                    assert "rank 1" in str(exc) and "release_shared_params" in str(exc), exc
                else:
                    raise AssertionError("the other still shares")
                x += 1
                worker.sync_params()
                fifo.write_text("go on")
            else:
                fifo.read_text()
                worker.copy_to_local()
                assert (x == 1).all()
            worker.release_shared_params()
        """
    ).require_success()


# Votes to stop.


def test_votes_of_one_training_are_seen_by_all_and_end_that_one_only(run_job):
    outcome = run_job(
        """
        import os, subprocess, sys
        from platoon_base import connect

        late = "PLATOON_RANK" not in os.environ
        with connect() as worker:
            votes, rank = worker.advanced.stop_votes, worker.global_rank
            if late:
                votes.open(2)
                votes.cast()
                sys.exit()
            for number, voters in ((1, {0, 2}), (2, {1}), (3, set())):
                votes.open(number)
                assert not votes.passed("all", range(3))
                worker.barrier("open")
                if rank in voters:
                    votes.cast()
                if number == 2 and rank == 0:
                    environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
                    subprocess.run([sys.executable, *sys.argv], env=environment, check=True)
                worker.barrier("cast")
                assert votes.voters() == voters | ({3} if number == 2 else set()), votes.voters()
                assert votes.passed("any", range(3)) == bool(voters)
                assert votes.passed("leader", range(3)) == (0 in voters)
                assert not votes.passed("all", range(3))
                assert not worker.should_stop
                worker.barrier("seen")
            worker.report({str(rank): "ok"})
        """,
        workers=3,
    ).require_success()
    assert len(outcome.reported) == 3


def test_the_epoch_of_a_plain_loop_is_shown(run_job):
    """By `shard`, which has to be told it for the shuffle; without a shuffle 0 may be the default alone."""
    snapshots = []
    run_job(
        """
        import numpy as np
        from platoon_base import connect
        worker = connect()
        worker.init_shared_params([np.zeros(3)])
        for epoch in range(1, 4):
            for row in worker.shard(8, shuffle=True, epoch=epoch):
                worker.sync_params()
        worker.shard(8)
        """,
        observer=snapshots.append,
    ).require_success()
    assert {rank: progress.epoch for rank, progress in snapshots[-1].progress.items()} == {0: 3, 1: 3}
