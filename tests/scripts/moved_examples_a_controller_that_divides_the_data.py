import numpy

from by_hand_preamble import worker

assert worker.gpuctx is None  # there is no device
assert worker.send_req("seed") == 1234
first, last = worker.send_req("splits", {"train_len": 11})["train_splits"]
print(first, last, worker.all_reduce(numpy.array([float(last - first)]), "+").tolist())
