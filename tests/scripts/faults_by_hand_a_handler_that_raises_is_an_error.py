import numpy

from by_hand_preamble import worker

for req in ("done", "bad", "late", "platoon-x", "exit"):
    try:
        worker.send_req(req)
    except Exception as exc:
        print(type(exc).__name__, exc)
try:
    worker.send_req("a", numpy.zeros(2))
except Exception as exc:
    print(type(exc).__name__, exc)
assert worker.send_req("a") == 1
