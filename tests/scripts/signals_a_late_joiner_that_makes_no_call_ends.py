import numpy as np
import os

from signals_preamble import FOLDER, connect, tell, until

worker = connect()
rank, x = worker.global_rank, np.zeros(100_000)

(FOLDER / "job").write_text(os.environ["PLATOON_JOB"])
tell("ready")
until((FOLDER / "go on").exists)
