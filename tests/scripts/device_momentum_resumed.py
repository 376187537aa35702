from device_momentum_head import *

assert worker.resume_at.steps == 3, worker.resume_at
replay = Replay(rule, starts)
with np.load(os.path.join(sys.argv[1], "replay.npz")) as saved:
    for k, buffer in enumerate([replay.center, *replay.states]):
        for i in range(len(buffer)):
            buffer[i] = saved[f"{k} {i}"].copy()
for turn in range(size):
    replay.take_over(turn)
require_equal(replay.center, "resumed")
take_turns(replay, 1000)
worker.release_shared_params()
