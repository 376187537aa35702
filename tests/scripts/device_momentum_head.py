"""Each worker in its turn, three times; NumPy follows."""

from device_preamble import *

rule = CenterMomentum(0.3, 0.9, 1.5)
starts = draw(0)
arrays = [on_device(a) for a in starts]
worker.init_shared_params(arrays, rule)


def advance(progress):
    for array, add in zip(arrays, progress):
        array[...] = np.asarray(array) + add
    worker.progress(steps=1, epoch=1)
    worker.sync_params()


def require_equal(expected, where):
    for array, x in zip(arrays, expected):
        assert np.array_equal(np.asarray(array), x), where


def take_turns(replay, seed):
    worker.barrier()
    for step in range(3):
        for turn in range(size):
            progress = draw(seed + 100 * step + turn)
            replay.sync(turn, progress)
            if turn == rank:
                advance(progress)
                require_equal(replay.locals[turn], (step, turn))
            worker.barrier()
