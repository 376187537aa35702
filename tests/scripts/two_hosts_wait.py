import time

from hosts_preamble import say, worker
from platoon_base.errors import PlatoonError

worker.barrier("start")
say("waits")
try:
    while True:
        worker.progress(steps=1)
        worker.barrier("again", timeout_s=30)
        time.sleep(0.01)
except PlatoonError as exc:
    say(type(exc).__name__)
    raise
