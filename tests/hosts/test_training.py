"""Training on several hosts: arrays over slow links, centers that are cut off, checkpoints, and commands for jobs."""

import json
import signal
import time

from laboratory import until
from launching_in_laboratory import Job, launch_words, script
from scripts_here import script_path

SHARES = script_path("training_shares")


def values(job):
    found = []
    for rank in range(sum(job.workers)):
        path = job.laboratory.folder / f"x{rank}"
        found.append(json.loads(path.read_text()) if path.exists() else [99.0, 0.0])
    return found


def start_sharing(start_job, make_laboratory, *options, workers=(1, 1)):
    there = make_laboratory(len(workers))
    job = start_job(SHARES, *options, workers=workers, in_laboratory=there, args=[there.folder])
    job.until_said("shares")
    return job


def test_centers_come_together_and_no_cut_holds_workers_up(make_laboratory, start_job):
    job = start_sharing(start_job, make_laboratory, workers=(2, 2))
    # Alone, the first host's center would go to 0.5 and the second one's to 2.5.
    until(lambda: all(1.0 < x < 2.0 for x, _ in values(job)), lambda: values(job), 40)
    job.laboratory.cut(job.laboratory.hosts[1])
    until(lambda: values(job)[0][0] < 1.0 and values(job)[3][0] > 2.0, lambda: values(job), 8)
    time.sleep(2)
    job.laboratory.mend(job.laboratory.hosts[1])
    until(lambda: all(1.0 < x < 2.0 for x, _ in values(job)), lambda: values(job), 20)
    assert max(worst for _, worst in values(job)) < 0.5
    job.launchers[0].send_signal(signal.SIGINT)
    assert job.wait(20) == [130, 130], job.text()


def test_an_exchange_over_a_slow_link_holds_no_worker_up(make_laboratory, start_job):
    """10 MB at 100 Mbit/s, 20 ms there and back: an exchange takes 0.9 s at least."""
    there = make_laboratory(2, delay_ms=5)
    there.limit("100mbit")
    job = start_job(SHARES, workers=(2, 2), in_laboratory=there, args=[there.folder, 2_500_000])
    # Alone, the first host's center would go to 0.5 and the second one's to 2.5.
    until(lambda: all(1.0 < x < 2.0 for x, _ in values(job)), lambda: values(job), 60)
    assert max(worst for _, worst in values(job)) < 0.5
    job.launchers[0].send_signal(signal.SIGINT)
    assert job.wait(20) == [130, 130], job.text()


COUNTS = script_path("training_counts")


def test_a_job_is_resumed_on_another_number_of_hosts(make_laboratory, start_job):
    """The checkpoints are on the first host alone."""
    there = make_laboratory(3)
    kept = ["--checkpoint-every", "0.2", "--resume", "/tmp/kept"]
    job = start_job(COUNTS, *kept, workers=(1, 1), in_laboratory=there, args=["stop"])
    assert job.wait() == [0, 0], job.text()
    for workers in ((1, 1, 1), (2,)):
        again = start_job(COUNTS, *kept, workers=workers, in_laboratory=there, args=["go"])
        assert again.wait() == [0] * len(workers), again.text()
        assert all(again.said(rank)[-1][1] > 1 for rank in range(sum(workers))), again.text()


def test_commands_for_running_jobs_on_any_host(make_laboratory, start_job):
    job = start_sharing(start_job, make_laboratory)
    for host in job.laboratory.hosts:
        listed = host.run(*launch_words()[:3], "jobs")
        assert SHARES.name in listed, listed
    top = job.laboratory.hosts[0].run(*launch_words()[:3], "top", "--once")
    assert "training" in top
    assert all(f"{host.name}:cpu" in top for host in job.laboratory.hosts), top
    job.laboratory.hosts[1].run(*launch_words()[:3], "stop")
    assert job.wait(30) == [130, 130], job.text()


def test_folders_that_hosts_do_not_share(make_laboratory):
    """Logs, summary and script in folders of each host's own."""
    there = make_laboratory(2)
    code = script('worker.barrier("a")\nsay("in", os.getcwd())')
    for host in there.hosts:
        folder = host.outside("/tmp/own")
        folder.mkdir()
        (folder / "train.py").write_text(code)
    Job(there, code, (1, 1)).write_key(*there.hosts)
    launchers = []
    for index, host in enumerate(there.hosts):
        words = ["--nnodes", 2, "--node-rank", index, "--rdzv-endpoint", "h0", "-n", 1, "-D", "cpu", "train.py"]
        launchers.append(host.start(*launch_words(*words), folder="/tmp/own"))
    assert [launcher.wait() for launcher in launchers] == [0, 0], [launcher.text() for launcher in launchers]
    for index, host in enumerate(there.hosts):
        (log,) = host.outside("/tmp/own").rglob(f"rank{index}.log")
        assert '["in", "/tmp/own"]' in log.read_text()
