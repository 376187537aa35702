import numpy as np

from signals_preamble import FOLDER, connect, tell, until

worker = connect()
rank, x = worker.global_rank, np.zeros(100_000)


tell(f"ready{rank}")
until((FOLDER / "go on").exists)
worker.barrier()
