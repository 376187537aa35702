import numpy

from by_hand_preamble import worker

assert worker.send_req("a") == {"req": "a", "id": 0, "info": None}
info = {"1": [1, 2.5, None, True, "x"], "n": {}}
assert worker.send_req("b", info)["info"] == info
assert worker.send_req("c", {1: (2, 3)})["info"] == {"1": [2, 3]}
assert worker.send_req({"done": 7})["req"] == {"done": 7}
assert numpy.isnan(worker.send_req("nan", float("nan"))["info"])
print(worker.local_size, worker.local_rank, worker.global_size, worker.global_rank)
