import sys
import numpy as np
from platoon_base.centers.gossip import GossipCenters
from platoon_base.layout import Layout
from platoon_base.rules import GoSGD

rank, rule, x = int(sys.argv[2]), GoSGD(probability=1.0), [np.zeros(int(sys.argv[3]), "float32")]
center = GossipCenters(sys.argv[1]).attach(Layout.of(x), rule, rank)
center.read(x, True, 60, begin=True)
print("joined", flush=True)
sys.stdin.readline()  # all have joined, each with a quarter
if sys.argv[4:] == ["on and on"]:
    x[0][:] = rank
    while True:
        center.sync(rule, x, True, 60)
        print("synchronized", flush=True)
x[0] += (0, 4, 8, 8)[rank]
for _ in range(30):
    center.sync(rule, x, True, 60)
center.close()
