import sys
import numpy as np
from platoon_base.centers.host import HostCenters
from platoon_base.layout import Layout
from platoon_base.rules import ASGD

x = [np.zeros(int(sys.argv[3]), "float32")]
center = HostCenters(sys.argv[1]).attach(Layout.of(x), ASGD(), int(sys.argv[2]))
center.read(x, True, 60, begin=True)
sys.stdin.readline()  # all begin together
for _ in range(30):
    x[0] += 1
    center.sync(ASGD(), x, True, 60)
center.close()
