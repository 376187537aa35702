import os
import random
import sys
import numpy as np

print("platoon_base.worker_process.forkserver_main" in sys.modules)
print(os.environ["PLATOON_RANK"], os.environ["PLATOON_DEVICE"], os.path.isdir(os.environ["PLATOON_JOB"]))
print(os.getsid(0) == os.getpgrp() == os.getpid(), os.getppid(), os.readlink("/proc/self/fd/0"))
print(np.random.randint(1 << 60), random.random())
