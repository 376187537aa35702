"""Real mpirun: one launcher per host, whose workers are the world."""

import signal

import pytest
from launching_in_laboratory import MEETS, kill_launchers, launch_words, said_in, script, until_said
from scripts_here import written

pytestmark = pytest.mark.engine


WORLD = script(
    """
    worker.barrier("start")
    say("world", rank, size, worker.local_rank, worker.gather(socket.gethostname()))
    """
)


def start(mpi, code, *options, workers=2, args=(), **kwargs):
    folder = mpi.laboratory.folder
    path = written(code, folder / "script.py")
    words = launch_words("-n", workers, "-D", "cpu", "--log-dir", folder / "logs", *options, path, *args)
    return mpi.start(*words, **kwargs)


def said(mpi, rank):
    return said_in(mpi.laboratory.folder / "logs" / f"rank{rank}.log")


def test_mpirun_launches_one_job_on_all_hosts(mpi):
    running = start(mpi, WORLD)
    assert running.wait() == 0, running.text()
    names = ["h0", "h0", "h1", "h1"]
    assert [said(mpi, rank)[-1] for rank in range(4)] == [["world", rank, 4, rank % 2, names] for rank in range(4)]
    left = [path.name for path in (mpi.laboratory.folder / "home" / ".platoon").iterdir()]
    assert left == ["key"]


def test_hosts_by_name_are_started_by_mpirun(mpi):
    """The agent stands for the remote shell that Open MPI is configured with."""
    folder = mpi.laboratory.folder
    (folder / "script.py").write_text(WORLD)
    variables = {
        **mpi.environment,
        "OMPI_MCA_plm_rsh_agent": str(folder / "agent"),
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_oob_tcp_if_include": "10.77.0.0/24",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PLATOON_KEY_FILE": f"{mpi.environment['HOME']}/.platoon/key",
    }
    words = launch_words("--hosts", "h0,h1", "-n", 2, "-D", "cpu", "--log-dir", folder / "logs", folder / "script.py")
    running = mpi.laboratory.start_at_login(*words, environment=variables)
    assert running.wait() == 0, running.text()
    assert [said(mpi, rank)[-1][1:3] for rank in range(4)] == [[rank, 4] for rank in range(4)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_mpirun_ends_all(mpi, number):
    running = start(mpi, script(MEETS), workers=1)
    until_said(mpi.laboratory.folder / "logs", running, "meets")
    running.send_signal(number)
    running.wait(30)


def test_a_failed_worker_is_the_status_of_mpirun(mpi):
    running = start(mpi, script('worker.barrier("start")\nif rank == 1:\n    sys.exit(7)\n'), workers=1)
    assert running.wait() == 7, running.text()


def test_two_launchers_on_one_host_are_refused(mpi):
    running = start(mpi, WORLD, slots=2)
    assert running.wait() != 0
    assert "2 of them on one host" in " ".join(running.text().split())


def test_a_host_that_loses_its_launcher_ends_the_job_of_mpirun(mpi):
    """mpirun ends all that it has started when one process of its own is killed."""
    running = start(mpi, script(MEETS), workers=1)
    until_said(mpi.laboratory.folder / "logs", running, "meets")
    kill_launchers(mpi.laboratory.hosts[1])
    assert running.wait(40) != 0
