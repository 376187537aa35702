import numpy as np

from signals_preamble import connect, tell

worker = connect()
rank, x = worker.global_rank, np.zeros(100_000)

try:
    tell("joined")
    while True:
        pass
except KeyboardInterrupt:
    tell("interrupted")
