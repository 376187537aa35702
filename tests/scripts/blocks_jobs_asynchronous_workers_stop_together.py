from blocks_jobs_stopped import *

assert (run({1: dict(after_n_epochs=2)}, "any", False) == [2, 10]).all()
assert (run({1: dict(after_n_epochs=1)}, "leader", False) == [4, 20]).all()
assert (run({0: dict(after_n_epochs=1), 1: dict(after_n_epochs=3)}, "all", False) == [3, 15]).all()
# In the middle of an epoch, each at its own batch; nobody waits for a monitoring that does not come.
ends = run({1: dict(after_n_batches=7)}, "any", False)
assert ends[1].tolist() == [1, 7] and ends[0][0] in (1, 2) and ends[0][1] <= 20
