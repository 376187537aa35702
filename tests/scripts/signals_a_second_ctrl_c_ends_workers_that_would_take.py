from job_preamble import rank, rest, signal, tell


def stay(number, frame):
    tell(f"{signal.Signals(number).name}{rank}")


signal.signal(signal.SIGTERM, stay)
signal.signal(signal.SIGINT, stay)
tell(f"ready{rank}")
while True:
    rest()
