"""Real Slurm: `srun platoon launch`, batch scripts, `scancel`, and tasks that are killed."""

import time

import pytest
from laboratory import until
from launching_in_laboratory import MEETS, kill_launchers, launch_words, said_in, script, until_said

pytestmark = pytest.mark.engine


WORLD = script(
    """
    worker.barrier("start")
    say("world", rank, size, worker.local_rank, worker.gather(socket.gethostname()))
    """
)


class Launched:
    """A job of Slurm with the logs of its workers, in a shared folder."""

    def __init__(self, slurm, code):
        self.slurm = slurm
        self.folder = slurm.laboratory.folder
        self.script = self.folder / "script.py"
        self.script.write_text(code)
        self.logs = self.folder / "logs"

    def words(self, *options, workers=2):
        return launch_words("-n", workers, "-D", "cpu", "--log-dir", self.logs, *options, self.script)

    def srun(self, *options, srun=(), **kwargs):
        words = ["srun", "-N2", "-n2", "--ntasks-per-node=1", *srun, *self.words(*options, **kwargs)]
        return self.slurm.start(*words)

    def said(self, rank):
        return said_in(self.logs / f"rank{rank}.log")


def interrupt(slurm):
    """Send SIGINT to the launchers; Ctrl-C in the terminal of srun needs two, and then Slurm may kill them."""
    jobs = slurm.ask("squeue", "-h", "-o", "%i").split()
    assert slurm.start("scancel", "--signal=INT", *jobs).wait() == 0


def worlds(launched, ranks):
    return [launched.said(rank)[-1] for rank in ranks]


def test_srun_launches_one_job_on_all_hosts(slurm):
    launched = Launched(slurm, WORLD)
    began = time.monotonic()
    running = launched.srun()
    assert running.wait() == 0, running.text()
    assert time.monotonic() - began < 20
    names = ["h0", "h0", "h1", "h1"]
    assert worlds(launched, range(4)) == [["world", rank, 4, rank % 2, names] for rank in range(4)]
    assert "4 workers on 2 hosts (2 on h0, 2 on h1)" in running.text()


@pytest.mark.parametrize(
    ("options", "more", "srun"),
    [
        ((), "#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=2\n", "srun --kill-on-bad-exit=0 "),
        (("--hosts", "h0,h1"), "", ""),
    ],
    ids=["srun", "hosts by name"],
)
def test_a_batch_script_launches_one_job(slurm, options, more, srun):
    """The file of docs/hosts.md, with another script and Python; a launcher starts hosts by name by srun itself."""
    launched = Launched(slurm, WORLD)
    batch = slurm.laboratory.folder / "job.sh"
    output = slurm.laboratory.folder / "batch.out"
    words = " ".join(map(str, launched.words(*options)))
    head = f"#!/bin/sh\n#SBATCH --nodes=2\n{more}#SBATCH --output={output}\n"
    batch.write_text(f"{head}{srun}{words}\necho ended with $?\n")
    assert slurm.start("sbatch", batch).wait() == 0
    until(lambda: output.exists() and "ended with" in output.read_text(), "the batch job ends")
    assert "ended with 0" in output.read_text()
    assert worlds(launched, [3])[0][:3] == ["world", 3, 4]


def test_scancel_ends_the_workers_of_all_hosts(slurm):
    launched = Launched(slurm, script(MEETS))
    running = launched.srun(workers=1)
    until_said(launched.logs, running, "meets")
    jobs = slurm.ask("squeue", "-h", "-o", "%i").split()
    slurm.start("scancel", *jobs).wait()
    running.wait(30)
    until(lambda: not any("platoon" in words for host in slurm.laboratory.hosts
                          for words in host.processes().values()), slurm.laboratory.leftovers, 20)  # fmt: skip


def test_sigterm_by_scancel_lets_scripts_save(slurm):
    """`scancel --signal=TERM` reaches all launchers at once, which count it once: there is time to save."""
    code = MEETS.replace("except PlatoonError", 'except KeyboardInterrupt:\n    say("saves")\nexcept PlatoonError')
    launched = Launched(slurm, script(code))
    running = launched.srun(workers=1)
    until_said(launched.logs, running, "meets")
    (job,) = slurm.ask("squeue", "-h", "-o", "%i").split()
    slurm.start("scancel", "--signal=TERM", job).wait()
    assert running.wait(30) != 0
    assert [launched.said(rank)[-1] for rank in (0, 1)] == [["saves"]] * 2, running.text()


def test_a_failed_worker_is_the_status_of_srun(slurm):
    launched = Launched(slurm, script('worker.barrier("start")\nif rank == 1:\n    sys.exit(7)\n'))
    running = launched.srun(workers=1)
    assert running.wait() == 7, running.text()


def test_a_killed_launcher_ends_or_leaves_the_job_as_srun_is_told(slurm):
    """Without --kill-on-bad-exit the other hosts go on."""
    launched = Launched(slurm, script(MEETS))
    running = launched.srun(srun=["--kill-on-bad-exit=0"], workers=1)
    until_said(launched.logs, running, "meets")
    kill_launchers(slurm.laboratory.hosts[1])
    running.until("lost host 1 (h1)")
    interrupt(slurm)
    assert running.wait(30) != 0


def test_nnodes_1_makes_each_task_a_job_of_its_own(slurm):
    launched = Launched(slurm, WORLD)
    words = launch_words("--nnodes", 1, "-n", 1, "-D", "cpu", launched.script)
    command = f'cd "$(mktemp -d)" && {" ".join(map(str, words))}'
    running = slurm.start("srun", "-N2", "-n2", "sh", "-c", command)
    assert running.wait() == 0, running.text()
    assert running.text().count('["world", 0, 1, 0') == 2
