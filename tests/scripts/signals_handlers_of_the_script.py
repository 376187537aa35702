from job_preamble import os, rank, signal, subprocess, sys, tell, time

came = []


def note(number, frame):
    came.append(number)
    tell(f"{signal.Signals(number).name} {rank} {os.getpid()}")


signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGXCPU, note)
if rank == 0:
    signal.signal(signal.SIGUSR1, note)
# A process that the worker has started, in its process group: signals for the script's handlers are not for it.
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
tell(f"ready{rank}")
while not {signal.SIGTERM, signal.SIGXCPU} & set(came):
    time.sleep(0.01)
tell(f"saved{rank} {child.poll() is None}")
