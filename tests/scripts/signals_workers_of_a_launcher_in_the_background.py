import numpy as np

from signals_preamble import connect, rest, tell

worker = connect()
rank, x = worker.global_rank, np.zeros(100_000)


try:
    tell(f"ready{rank}")
    rest()
except KeyboardInterrupt:
    tell(f"saved{rank}")
