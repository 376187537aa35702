"""In the middle of an epoch, at its end, and by a Checkpoint that EarlyStopping manages."""

from blocks_preamble import *
from blocks.extensions.stopping import EarlyStopping

cost, error = network()
saved = []


class Recorded(Checkpoint):
    def do(self, which_callback, *args):
        saved.append((str(which_callback), values(self.main_loop)))
        super().do(which_callback, *args)


own, center = [], []


def look(main_loop):
    own.append(values(main_loop))
    with worker.center_params():
        center.append(values(main_loop))
    worker.barrier("looked")


def saved_by_now(main_loop):
    worker.barrier("saved")  # the end of training moves the center once more


best = Recorded(tmp + "/managed.tar", after_training=False, save_main_loop=False)
monitoring = DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")
extensions = [
    monitoring,
    EarlyStopping("valid_cost", best, tmp + "/best.tar", epochs=50),
    Look(after_batch=look),
    Recorded(tmp + "/saved.tar", every_n_batches=3, save_main_loop=False),
    Look(after_batch=saved_by_now),
    ParameterSync(EASGD(alpha=0.3), every_n_batches=2),
    FinishAfter(after_n_batches=3),
]
main_loop = trained(cost, shard_stream(stream(64)), extensions)
if rank == 0:
    assert [name for name, _ in saved] == ["after_batch", "after_training"], saved
    assert (saved[0][1] == center[2]).all() and (saved[0][1] != own[2]).any()
    with open(tmp + "/saved.tar", "rb") as file:
        parameters = load_parameters(file)
    for name, shared in main_loop.model.get_parameter_dict().items():
        np.testing.assert_array_equal(parameters[name], shared.get_value())
else:
    assert not saved
