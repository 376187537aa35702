import os
import sys

from hosts_preamble import rank, say, worker

mark = os.path.join(sys.argv[1], "failed")
say(os.environ["HOME"])
if rank == 1 and not os.path.exists(mark):
    open(mark, "w").close()
    worker.progress(steps=1)
    os._exit(3)
