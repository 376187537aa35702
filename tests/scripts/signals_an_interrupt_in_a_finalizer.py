from job_preamble import rank, rest, tell


class Finalized:
    def __del__(self):
        tell(f"finalizing{rank}")
        rest()


try:
    finalized = Finalized()
    del finalized  # Python reports what a finalizer raises, and goes on
    tell(f"went on{rank}")
    rest()
except KeyboardInterrupt:
    tell(f"saved{rank}")
