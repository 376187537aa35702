import sys

from signals_preamble import FOLDER, connect, rest, tell, until

worker = connect()
rank = worker.global_rank
try:
    tell(f"ready{rank}")
    rest()
except KeyboardInterrupt:
    tell(f"saving{rank}")
    if "takes its time" in sys.argv:
        until((FOLDER / "has taken its time").exists)
    tell(f"saved{rank}")
