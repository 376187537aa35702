"""What made the original Platoon hang, leak, mix up models or report success, each with real processes: no harm here.

The rows are those of docs/reliability/original.md; some are tested elsewhere, as it says there.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from platoon_base import EASGD
from platoon_base.job import host_job

pytestmark = pytest.mark.base

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user or enter another network")


@pytest.mark.parametrize(
    ("ending", "status"),
    [("os.kill(os.getpid(), signal.SIGKILL)", 137), ("os._exit(0)", 0), ("raise RuntimeError('on purpose')", 1)],
)
def test_the_lock_is_freed_however_its_holder_ends(run_job, ending, status):
    outcome = run_job(
        f"""
        import os, signal
        from platoon_base import connect
        worker = connect()
        if worker.global_rank == 0:
            worker.lock()
        worker.barrier("the lock is taken")
        if worker.global_rank == 0:
            {ending}
        worker.lock(timeout_s=20)
        worker.unlock()
        """,
        workers=3,
    )
    assert [e.status for e in sorted(outcome.result.exits)] == [status, 0, 0], outcome.logs


def test_a_killed_worker_is_no_success_even_if_another_had_ended_well(run_job):
    outcome = run_job(
        """
        import os, signal
        from platoon_base import connect
        worker = connect()
        worker.advanced.meet("all are here")
        if worker.global_rank == 1:
            while 0 in worker.advanced.meet("who is left"):      # the first one leaves with status 0
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert outcome.result.status == 137, outcome.result


def test_ten_thousand_bad_messages_change_no_result(run_job, tmp_path):
    """Noise, cut-off, replayed and contradictory requests, too large ones, while another worker trains."""
    script = r"""
    import os, random, sys
    import msgspec, zmq
    import numpy as np
    from platoon_base import EASGD, connect
    from platoon_base.coordination import messages as msg
    from platoon_base.coordination.encoding import encode

    def bad(rng, rank):
        valid = [
            msg.Hello(protocol=msg.PROTOCOL, pid=4711, host="x", device="cpu", rank=rank),        # has joined already
            msg.Hello(protocol=msg.PROTOCOL + 1, pid=4711, host="x", device="cpu"),
            msg.InitCenter(specs=[("W", (10**12,), "float64")], rule="EASGD(alpha=0.5)"),          # 8 TB
            msg.CenterReady(), msg.Barrier(name="barrier", timeout_s=1e9), msg.Leave(),
            msg.Report(metrics={"center": 1.0}), msg.StopVote(reason="a stranger's"),
            msg.UserRequest(req="platoon-init"),
        ]
        kind = rng.randrange(4)
        if kind == 0:
            return rng.randbytes(rng.choice([0, 1, 7, 8, 9, 60, 5000]))
        data = encode(rng.choice(valid))
        if kind == 1:
            data = data[: rng.randrange(len(data))]
        if kind == 2 and rng.random() < 0.02:
            data += bytes(1 << 21)
        return rng.randbytes(8) + data

    worker = connect()
    x = np.linspace(0, 1, 100_000)
    worker.barrier("both are here")
    if worker.global_rank == 1 and len(sys.argv) > 2:
        rng = random.Random(7)
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(f"ipc://{os.environ['PLATOON_JOB']}/control")
            for number in range(10_000):
                socket.send(bad(rng, rank=0))
                if number % 100 == 99:
                    for _ in range(100):
                        assert socket.poll(20_000)
                        answer = msgspec.msgpack.decode(socket.recv()[8:])
                        assert answer["type"] == "failure", answer
    if worker.global_rank == 0:
        worker.init_shared_params([x], EASGD(0.3))
        rng = np.random.default_rng(3)
        for _ in range(300):
            x += rng.standard_normal(x.shape)
            worker.sync_params()
        worker.copy_to_local()
        np.save(f"{sys.argv[1]}/center{len(sys.argv)}.npy", x)
        assert not worker.should_stop
    worker.barrier("both have ended")
    """
    run_job(script).require_success()
    outcome = run_job(script, args=["with bad messages"]).require_success()
    assert outcome.result.stopped_by == "end of script"
    assert outcome.reported == {}
    first, second = ((tmp_path / f"center{n}.npy").read_bytes() for n in (2, 3))
    assert first == second


@as_root
def test_another_user_cannot_reach_a_job(tmp_path):
    """Neither its socket nor its memory, and so can neither join nor make segments."""
    look = textwrap.dedent(
        """
        import os, sys
        from platoon_base.errors import PlatoonError
        from platoon_base.job import attaching, join
        os.setgid(65534), os.setuid(65534)      # from here on this process may not even read the package
        folder, words = sys.argv[1:]
        for path, flags in ((folder + "/control", os.O_RDWR), (folder, os.O_RDONLY), (words, os.O_RDONLY)):
            try:
                os.close(os.open(path, flags))
            except PermissionError:
                continue
            sys.exit(f"{path} can be opened")
        try:
            join(folder)
        except (PlatoonError, OSError) as error:
            print(f"refused: {error}")
        """
    )
    with host_job(1) as job:
        files = job.files
        command = [sys.executable, "-c", look, files.folder, f"/dev/shm{files.job_state}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused"), done.stdout


TWO_JOBS = """
import sys
import numpy as np
from platoon_base import ASGD, connect
worker = connect()
step = float(sys.argv[1])
x = np.zeros(1000)
worker.init_shared_params([x], ASGD())
for _ in range(50):
    x += step
    worker.sync_params()
worker.barrier()
worker.copy_to_local()
assert (x == 2 * 50 * step).all(), x[:3]
"""


@pytest.mark.parametrize("apart", [[], pytest.param(["unshare", "-n"], marks=as_root)], ids=["", "another network"])
def test_two_jobs_at_once_keep_out_of_each_other(write_script, tmp_path, apart):
    if apart and not shutil.which("unshare"):
        pytest.skip("needs unshare, of util-linux")
    script = write_script(TWO_JOBS)
    launch = [sys.executable, "-m", "platoon_base", "launch", "-n", "2", "--log-dir"]
    jobs = [
        subprocess.Popen([*where, *launch, f"logs{step}", script, str(step)], cwd=tmp_path, stdout=subprocess.PIPE)
        for where, step in (([], 1), (apart, 3))
    ]
    outputs = [job.communicate(timeout=60)[0].decode() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs


def test_arrays_of_as_many_bytes_and_another_shape_are_not_combined(run_job):
    run_job(
        """
        import numpy as np
        from platoon_base import connect
        from platoon_base.errors import PlatoonError
        worker = connect()
        shape = (2, 6) if worker.global_rank else (3, 4)
        assert (worker.all_reduce(np.ones((4, 3))) == 2).all()
        try:
            worker.all_reduce(np.ones(shape))
        except PlatoonError as error:
            assert "(2, 6)" in str(error) or "(3, 4)" in str(error), error
        else:
            raise AssertionError("combined")
        """
    ).require_success()


def test_a_rank_that_ends_earlier_leaves_no_other_waiting(run_job):
    outcome = run_job(
        """
        import numpy as np
        from platoon_base import connect
        from platoon_base.errors import WorkerLostError
        worker = connect()
        try:
            for _ in range(5 - worker.global_rank):
                worker.all_reduce(np.ones(3), timeout_s=60)
        except WorkerLostError as error:
            assert worker.global_rank == 0 and "rank 1" in str(error), error
        else:
            assert worker.global_rank == 1
        """
    ).require_success()
    assert outcome.result.seconds < 60


def test_workers_on_one_device_have_logs_and_ranks_of_their_own(platoon, write_script, tmp_path):
    script = write_script(
        """
        from platoon_base import connect
        worker = connect()
        print("rank", worker.global_rank, worker.local_rank, "of", worker.local_size)
        """
    )
    assert platoon("launch", "-D", "cpu", "cpu", "--log-dir", "logs", script).returncode == 0
    for rank in range(2):
        assert f"rank {rank} {rank} of 2" in (tmp_path / "logs" / f"rank{rank}.log").read_text()


def test_a_rule_cannot_be_changed_without_effect():
    with pytest.raises(AttributeError):
        EASGD(0.5).alpha = 0.1


def test_nothing_is_left_without_close(run_job):
    """The fixture `nothing_left_behind` looks for what is left."""
    outcome = run_job(
        """
        import os
        import numpy as np
        from platoon_base import EASGD, connect
        worker = connect()
        x = np.zeros(1_000_000)
        worker.init_shared_params([x], EASGD())
        worker.sync_params()
        worker.all_reduce(x)
        os._exit(0)
        """
    )
    assert outcome.result.status == 0


def test_the_tests_that_the_docs_name_exist():
    tests = Path(__file__).parents[1]
    pages = sorted((tests.parent / "docs" / "reliability").glob("*.md"))
    text = "".join(page.read_text() for page in pages)
    defined = "".join(path.read_text() for path in tests.glob("*/test_*.py"))
    named = set(re.findall(r"`(?:\w+\.py::)?(test_\w+)`", text))
    assert len(named) > 80
    assert [name for name in sorted(named) if f"def {name}(" not in defined] == []
    files = set(re.findall(r"`(test_\w+\.py)`", text))
    assert len(files) > 60
    assert [name for name in sorted(files) if not list(tests.glob(f"*/{name}"))] == []
