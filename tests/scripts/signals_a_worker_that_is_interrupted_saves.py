from job_preamble import FOLDER, rank, rest, sys, tell, until

try:
    tell(f"ready{rank}")
    rest()
except KeyboardInterrupt:
    tell(f"saving{rank}")
    if "takes its time" in sys.argv:
        until((FOLDER / "has taken its time").exists)
    tell(f"saved{rank}")
