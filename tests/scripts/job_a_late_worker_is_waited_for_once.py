import os
import subprocess
import sys
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
