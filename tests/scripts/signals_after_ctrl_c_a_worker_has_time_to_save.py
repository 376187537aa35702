import numpy as np

from signals_preamble import FOLDER, connect, rest, tell, until

worker = connect()
rank, x = worker.global_rank, np.zeros(100_000)


try:
    tell(f"ready{rank}")
    rest()
except KeyboardInterrupt:
    tell(f"saving{rank}")
    until((FOLDER / "has taken its time").exists)
    tell(f"saved{rank}")
