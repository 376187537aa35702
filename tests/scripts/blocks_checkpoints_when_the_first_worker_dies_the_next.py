from blocks_preamble import *
from watching import until


def die(main_loop):
    if rank == 0 and main_loop.status["epochs_done"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2:] == ["learns of it between two meetings"] and main_loop.status["epochs_done"] == 1:
        until(lambda: worker.is_leader)


cost, _ = network()
main_loop = trained(
    cost,
    shard_stream(stream(64)),
    [
        DistributedMonitoring([cost], stream(24, seed=1), prefix="valid", after_epoch=True),
        ParameterSync(EASGD(), every_n_batches=3),
        Look(after_batch=die),
        FinishAfter(after_n_epochs=2),
        Printing(),
        Checkpoint(tmp + "/loop.tar", save_main_loop=False),
    ],
    Scale(0.2),
)
with open(tmp + "/loop.tar", "rb") as file:
    saved = load_parameters(file)
for name, parameter in main_loop.model.get_parameter_dict().items():
    np.testing.assert_array_equal(saved[name], parameter.get_value())
