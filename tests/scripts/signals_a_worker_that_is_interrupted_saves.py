from job_preamble import rank, rest, tell

try:
    tell(f"ready{rank}")
    rest()
except KeyboardInterrupt:
    tell(f"saved{rank}")
