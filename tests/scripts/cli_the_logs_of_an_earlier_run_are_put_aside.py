import os
import pathlib
import signal
import time

there = pathlib.Path("there")
if os.environ["PLATOON_RANK"] == "1":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("of the earlier run", flush=True)
    there.touch()
    os._exit(0)
while not there.exists():
    time.sleep(0.01)
raise RuntimeError("of the earlier run")
