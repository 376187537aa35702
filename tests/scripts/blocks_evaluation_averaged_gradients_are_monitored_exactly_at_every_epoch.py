from blocks_preamble import *
from blocks_evaluation_monitored import *

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
main_loop = trained(
    cost,
    shard_stream(stream(80), uneven="drop"),
    [monitoring, Look(after_epoch=look), FinishAfter(after_n_epochs=2)],
    AllReduceGradients(Scale(0.1)),
)
assert len(found) == 2 and (found[0]["cost"] != found[1]["cost"])
