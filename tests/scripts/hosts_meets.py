import time

from hosts_preamble import PlatoonError, say, worker

worker.barrier("start")
say("meets")
try:
    while not worker.should_stop:
        began = time.monotonic()
        worker.progress(steps=1)
        worker.barrier("again", timeout_s=60)
        if time.monotonic() - began > 0.3:
            say("stalled", time.monotonic() - began)
        time.sleep(0.01)
    say("stops", worker.stop_reason)
except PlatoonError as exc:
    say(type(exc).__name__, str(exc))
    raise
