from job_preamble import ASGD, Variable, np, rank, worker
from platoon_base.worker import copy_values, start_training

values = [
    Variable("w", np.full((2, 3), -0.0 if rank == 0 else np.nan, "f4")),
    Variable("steps", np.int64(5 + rank)),
    Variable("scalar", np.float16(rank)),
    Variable(None, np.asfortranarray(np.arange(6.0).reshape(2, 3)) + rank),
]
weight, order = Variable("shared", np.full(4, 10.0 + rank)), []


def once_met(ranks):
    order.append([ranks, worker.advanced.shares, int(values[1].value) == 5 + rank])


rule = ASGD()
ranks = start_training(
    worker, "fit 1", "fit", values=[*values, weight], settings="ASGD", rule=rule, parameters=[weight], once_met=once_met
)
assert ranks == [0, 1, 2]
assert order == [[[0, 1, 2], False, True]]
assert (weight.value == 10).all()
expected = [np.full((2, 3), -0.0, "f4"), np.int64(5), np.float16(0), np.arange(6.0).reshape(2, 3)]
assert [v.value.tobytes() for v in values] == [e.tobytes() for e in expected]
assert [v.value.dtype for v in values] == [e.dtype for e in expected]
assert worker.advanced.shares and worker.advanced.stop_votes.number == 1
weight.value = weight.value + 1
worker.sync_params()
worker.barrier("all have trained")
worker.copy_to_local()
assert (weight.value == 13).all(), weight.value
worker.release_shared_params()

values[0].set_value(np.full((2, 3), rank, "f4"))
assert start_training(worker, "fit 2", "fit", values=values) == [0, 1, 2]
assert (values[0].value == 0).all() and not worker.advanced.shares and worker.advanced.stop_votes.number == 2
values[0].set_value(np.full((2, 3), rank, "f4"))
copy_values(values[:1], worker, root=2)
assert (values[0].value == 2).all()
