"""At the end, where steps behind the last synchronization are no part of it; and while another goes on training."""

from blocks_preamble import *
from pathlib import Path
from watching import await_file

cost, _ = network()
valid, moved, saved = stream(24, seed=1), tmp + "/moved", {}


def moves(main_loop):  # in the second epoch, before the first worker has saved at the end of the first
    if rank == 1 and main_loop.status["iterations_done"] == 8:
        open(moved, "w").close()


def waits(main_loop):
    if rank == 0 and main_loop.status["epochs_done"] == 1:
        await_file(Path(moved))


main_loop = trained(
    cost,
    shard_stream(stream(80)),
    [
        DistributedMonitoring([cost], valid, prefix="valid", after_epoch=True),
        ParameterSync(EASGD(alpha=0.3), every_n_batches=3),
        Look(after_batch=moves, after_epoch=waits),
        Checkpoint(tmp + "/1.tar", save_main_loop=False, after_n_epochs=1, after_training=False),
        Checkpoint(tmp + "/2.tar", save_main_loop=False),
        FinishAfter(after_n_epochs=2),
    ],
    Scale(0.2),
)
ends = same_everywhere(main_loop)
if rank == 0:
    value = theano.function(ComputationGraph(cost).inputs, cost, on_unused_input="ignore")
    names = [x.name for x in ComputationGraph(cost).inputs]
    for epoch in (1, 2):
        with open(f"{tmp}/{epoch}.tar", "rb") as file:
            main_loop.model.set_parameter_values(load_parameters(file))
        again = np.mean([value(*(batch[n] for n in names)) for batch in valid.get_epoch_iterator(as_dict=True)])
        np.testing.assert_allclose(main_loop.log[5 * epoch]["valid_cost"], again, rtol=1e-6)
    assert (values(main_loop) == ends).all()
