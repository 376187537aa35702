from blocks_preamble import *


def die(main_loop):
    if rank == 1 and main_loop.status["iterations_done"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)


main_loop = trained(
    network()[0],
    shard_stream(stream(80), uneven="drop"),
    [ParameterSync(None), Look(after_batch=die), FinishAfter(after_n_epochs=9)],
    AllReduceGradients(Scale(0.1)),
)
