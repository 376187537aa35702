from blocks_evaluation_monitored import compare, monitored, one_process, records
from blocks_preamble import AllReduceGradients, DistributedMonitoring, FinishAfter, Look, Scale, loop, network
from blocks_preamble import shard_stream, stream

cost, error = network()


def whole():
    return stream(45, seed=3)


found = []


def look(main_loop):
    row = main_loop.log.current_row
    got = records(row, "valid")
    compare(got, one_process(cost, whole()))
    found.append(got)


monitoring = DistributedMonitoring(monitored(cost), whole(), prefix="valid", every_n_batches=3)
main_loop = loop(
    cost,
    shard_stream(stream(80), uneven="drop"),
    [monitoring, Look(after_epoch=look), FinishAfter(after_n_epochs=2)],
    AllReduceGradients(Scale(0.1)),
)
main_loop.run()
assert len(found) == 2 and (found[0]["cost"] != found[1]["cost"])
