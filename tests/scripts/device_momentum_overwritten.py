from device_momentum_head import *

replay = Replay(rule, starts)
take_turns(replay, 1)
values = [c.copy() for c in replay.center]
for value in values:
    value.reshape(-1)[::3] += 1
replay.overwrite(0, values)
if rank == 0:
    for array, value in zip(arrays, values):
        array[...] = value
    worker.copy_to_global()
take_turns(replay, 1000)
