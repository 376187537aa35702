from blocks_preamble import *
from blocks_evaluation_monitored import *

cost, error = network()


def whole():
    return stream(int(sys.argv[2]), seed=3)


monitoring = DistributedMonitoring(monitored(cost), whole(), prefix="valid", after_epoch=True)
together = ParameterSync(EASGD(), every_n_batches=2)


def look(main_loop):
    # Nobody moves the center before all have looked.
    got, own = records(main_loop.log.current_row, "valid"), values(main_loop)
    with worker.center_params():
        assert (values(main_loop) != own).any()
        compare(got, one_process(cost, whole()))
    worker.barrier("looked")
    seen.append(got)


seen = []
extensions = [monitoring, Look(after_epoch=look), together, FinishAfter(after_n_epochs=2)]
main_loop = loop(cost, shard_stream(stream(64)), extensions)
first = one_process(cost, whole())
main_loop.run()
begun = records(main_loop.log[0], "valid")
compare(begun, first)
got = seen[-1]
assert len(seen) == 2 and got.keys() == begun.keys()
packed = np.array([float(np.sum(got[name])) for name in sorted(got) if name != "products"])
assert (everyones(packed) == packed).all()
