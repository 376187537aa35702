import os
import signal
import sys
import numpy as np
from platoon_base.collectives.host import HostCollective


class Telling:
    def why_absent(self, ranks):
        print("waiting", flush=True)
        return ""


def end(*_):
    group.close()
    if handler == "exits":
        sys.exit(7)
    if handler == "ends at once":
        os._exit(7)


name, index, fused, handler = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True", sys.argv[4]
group = HostCollective.attach(name, range(3), index, Telling(), fused=fused)
signal.signal(signal.SIGTERM, end)
try:
    group.all_reduce(np.ones(300_000, np.float32), timeout_s=60)
except Exception as exc:
    print(type(exc).__name__, exc, flush=True)
    sys.exit(7)
