from blocks_preamble import *

cost, error = network()
end = FinishAfter(after_n_batches=7) if rank == 1 else FinishAfter(after_n_epochs=4)
extensions = [
    ParameterSync(EASGD(), every_n_batches=2),
    end,
    DistributedMonitoring([cost], stream(24, seed=1), prefix="valid"),
]
main_loop = trained(cost, shard_stream(stream(80), uneven="drop"), extensions)
assert worker.closed == (rank == 1)
if rank == 0:
    assert main_loop.status["epochs_done"] == 4
    assert all("valid_cost" in main_loop.log[row] for row in main_loop.status["_epoch_ends"])
