import numpy as np
import signal

from signals_preamble import connect, rest, tell


def stay(number, frame):
    tell(f"{signal.Signals(number).name}{rank}")


signal.signal(signal.SIGTERM, stay)
signal.signal(signal.SIGINT, stay)


worker = connect()
rank, x = worker.global_rank, np.zeros(100_000)


tell(f"ready{rank}")
while True:
    rest()
