"""The first host of hosts_simulation.py: the launcher's own parts, in this process. Arguments: hosts, endpoint, pipe.

Only two programs are simulated: each worker process here reads from the pipe until it is closed, and the courier is
`simulated_courier.py`. The first line of the output is the folder of the job.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from platoon_base.controller.stop_signals import StopSignals
from platoon_base.hosts.place import Place
from platoon_base.job.hosting import JobOptions, host_job
from platoon_base.multihost import couriers
from platoon_base.multihost.rendezvous import Introduction, gather_hosts

WORKERS = 8


def main() -> None:
    """Serve one job to its end."""
    hosts, endpoint, pipe = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    couriers.python_main = lambda module: [sys.executable, str(Path(__file__).with_name("simulated_courier.py"))]
    here = Introduction(Place(hosts, 0), ["cpu"] * WORKERS, "simulated")
    with StopSignals() as signals, contextlib.ExitStack() as stack:
        table = None
        if hosts > 1:
            table = stack.enter_context(
                gather_hosts(endpoint, here, signals, lambda text: None, timeout_s=60, host_timeout_s=60)
            )
        options = JobOptions(hosts=table, observer=lambda snapshot: None, observe_every_s=1.0)
        with host_job(WORKERS * hosts, options) as job:
            print(job.files.folder, flush=True)
            for rank in range(WORKERS):
                job.start(rank, ["cat", pipe], os.environ, None)
            if table is not None:
                table.welcome(job.files, Path.cwd(), options.grace_s, "")
            result = job.serve(signals)
        if table is not None:
            table.over(result.status, result.stopped_by, again=False)
    sys.exit(result.status)


if __name__ == "__main__":
    main()
