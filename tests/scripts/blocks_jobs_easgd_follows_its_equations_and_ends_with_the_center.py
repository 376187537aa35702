from blocks_preamble import *

cost, error = network(seed=1 + rank)
trace = {}


def begin(main_loop):
    trace["begin"] = values(main_loop)


def before(main_loop):
    for parameter in main_loop.algorithm.parameters:
        parameter.set_value(np.full_like(parameter.get_value(), rank + 2))
    if rank == 1:
        worker.barrier("worker 0 has synchronized")


def after(main_loop):
    trace["after"] = values(main_loop)
    if rank == 0:
        worker.barrier("worker 0 has synchronized")
    worker.barrier("both have synchronized")  # the end of training does it once more


looks = [Look(before_epoch=begin), Look(before_batch=before), Look(after_batch=after)]
sync = ParameterSync(EASGD(alpha=0.25), every_n_batches=1)
# The center is what counts behind ParameterSync, which takes the first place.
main_loop = trained(cost, shard_stream(stream(16)), [*looks, FinishAfter(after_n_batches=1), sync], Scale(0.0))
assert main_loop.extensions[0] is sync

begun, moved = everyones(trace["begin"]).astype("float64"), everyones(trace["after"])
assert (begun[0] == begun[1]).all()
center = begun[0]
for x, got in zip((2.0, 3.0), moved):
    d = 0.25 * (x - center)
    center = center + d
    np.testing.assert_allclose(got, x - d, rtol=1e-6)
ends = everyones(values(main_loop))
assert (ends[0] == ends[1]).all() and not worker.advanced.shares and not worker.closed
