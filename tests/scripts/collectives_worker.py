import sys
import numpy as np
from platoon_base.collectives.host import HostCollective
from platoon_base.shm.segments import Segment

name, size, index, fused = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "True"
life = Segment.attach(name + "-life")
life.try_lock(index)


class Locks:
    def why_absent(self, ranks):
        dead = [rank for rank in ranks if not life.locked(rank)]
        return f"rank {dead} holds its lock no more" if dead else ""


open_group = HostCollective.create if index == 0 else HostCollective.attach
group = open_group(name, range(size), index, Locks(), fused=fused)
print("attached", flush=True)
input()
x = np.ones(300_000, np.float32)
try:
    while True:
        assert (group.all_reduce(x, timeout_s=60) == size).all()
        group.all_reduce(x[:9], timeout_s=60)
        print("went on", flush=True)
except Exception as exc:
    print(type(exc).__name__, exc, flush=True)
group.close()
