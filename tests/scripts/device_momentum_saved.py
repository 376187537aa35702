from device_momentum_head import *

replay = Replay(rule, starts)
take_turns(replay, 1)
if rank == 0:
    buffers = [replay.center, *replay.states]
    named = {f"{k} {i}": a for k, buffer in enumerate(buffers) for i, a in enumerate(buffer)}
    np.savez(os.path.join(sys.argv[1], "replay.npz"), **named)
worker.release_shared_params()
