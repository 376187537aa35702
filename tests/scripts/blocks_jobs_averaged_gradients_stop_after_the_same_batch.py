from blocks_jobs_stopped import *

assert (run({1: dict(after_n_batches=7)}, "any", True) == [1, 7]).all()
assert (run({0: dict(after_n_batches=7), 1: dict(after_n_batches=12)}, "all", True) == [2, 12]).all()
assert (run({1: dict(after_n_batches=3), 0: dict(after_n_epochs=2)}, "leader", True) == [2, 10]).all()
assert (run({1: dict(after_n_epochs=1)}, "all", True) == [4, 20]).all()
