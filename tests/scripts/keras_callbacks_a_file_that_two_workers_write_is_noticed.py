from keras_preamble import *
import fcntl

model = dense()
ending = "h5" if KERAS_2 else "keras"
for rank_alone in range(size):  # one after the other, and each a file of its own too
    if rank == rank_alone:
        model.save(os.path.join(sys.argv[1], f"common.{ending}"))
        model.save(os.path.join(sys.argv[1], f"own of {rank}.{ending}"))
    worker.barrier("saved")
path = os.path.join(sys.argv[1], "held.weights.h5")
if rank == 0:
    with open(path, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as HDF5 does on the worker that writes first
        model.save_weights(path)
    model.load_weights(path)
    assert not [name for name in os.listdir(sys.argv[1]) if name.startswith(".")]
