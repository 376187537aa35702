"""Runs scripts that import `pretended_hosts` on workers of one machine that take themselves to be on several hosts."""

import re

from scripts_here import script_path

ENDS = script_path("over_hosts_ends")


def over_hosts(run_job, keys=""):
    """Make a function that runs a script with one worker for each rank of some hosts, such as "2+1"."""

    def run(workers, script, args=(), keys=keys, codec="none"):
        environment = {"PRETENDED": workers, **({"PRETENDED_KEYS": keys} if keys else {})}
        environment["PRETENDED_COMPRESSION"] = codec
        return run_job(script, sum(map(int, workers.split("+"))), args=list(map(str, args)), environment=environment)

    return run


def ends(run_over, workers, fault, victim, n, first=10, **options):
    """Run three sums of n elements after one of ``first``; before them one rank has a fault, see the script."""
    return run_over(workers, ENDS, [fault, victim, n, first], **options)


def require_lost(outcome, victim):
    """Fail unless all but a killed rank have ended within seconds with an error that names it."""
    for rank, log in enumerate(outcome.logs):
        if rank != victim:
            (line,) = re.findall("ENDED.*", log)
            assert line.startswith("ENDED WorkerLostError")
            assert re.search(rf"rank {victim} (is lost|has left)", line), line
            assert float(line.split()[-1]) < 10
            assert float(re.search(r"CLOSED (\S+)", log)[1]) < 15
