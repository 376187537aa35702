import os
import subprocess
import sys
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
