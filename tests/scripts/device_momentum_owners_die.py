import os
import signal
import sys
from device_momentum_head import advance, arrays, require_equal, rule, starts, take_turns
from device_preamble import Replay, draw, living, partitions_of, rank, size, until, worker

replay = Replay(rule, starts)
take_turns(replay, 1)
if rank < size - 1:
    os.kill(os.getpid(), signal.SIGKILL)
until(lambda: living() == 1)
if sys.argv[2] == "device":
    with partitions_of(arrays) as directory:

        def all_are_mine():
            worker.copy_to_local()  # the partitions of the dead are made anew meanwhile
            return all(directory.entry(partition).owner == rank for partition in range(directory.workers))

        until(all_are_mine, 20)
worker.copy_to_local()
replay.take_over(rank)
require_equal(replay.locals[rank], "taken over")
for step in range(3):
    replay.sync(rank, draw(step), among=1)
    advance(draw(step))
    require_equal(replay.locals[rank], step)
worker.report({"done": 1})
