"""Train the LSTM by the original's calls and by those of this package in turn; see ../lstm.py.

Both do the same work: ten mini-batches, then EASGD. The original's script also asks the controller what to do before,
and reports what was done after.
"""

import itertools

import harness

from platoon_base.platoon_api.channel import Worker
from platoon_base.platoon_api.param_sync import EASGD

import lstm_train  # isort: skip  (Theano needs what the lines above prepare)

TRAIN_LEN = lstm_train.EVERY


def main(given, args):
    worker = Worker(**Worker.default_arguments(args))
    rank, handle = worker.global_rank, worker.handle
    params = lstm_train.parameters(given.vocabulary, given.units)
    step = lstm_train.compile_step(params, seed=rank)
    worker.init_shared_params(params, EASGD(lstm_train.ALPHA))
    reviews = lstm_train.reviews(TRAIN_LEN * given.rounds, given.vocabulary, seed=rank)

    def original(batches, rounds):
        for _ in range(rounds):
            if worker.send_req("next") != "train":
                raise RuntimeError("this benchmark's controller always says train")
            for _ in range(TRAIN_LEN):
                step(*next(batches))
            worker.sync_params(synchronous=True)
            worker.send_req("done", {"train_len": TRAIN_LEN})

    def own(batches, rounds):
        for _ in range(rounds):
            for _ in range(TRAIN_LEN):
                step(*next(batches))
            handle.progress(steps=TRAIN_LEN)
            handle.sync_params()

    loops = {"original": original, "handle": own}
    for loop in loops.values():
        loop(itertools.cycle(reviews), 3)
    seconds = {name: [] for name in loops}
    for repeat in range(given.repeats):
        for name in list(loops)[:: 1 if repeat % 2 == 0 else -1]:
            handle.barrier("window")  # both windows see the same mini-batches
            seconds[name].append(harness.seconds(lambda n=name: loops[n](iter(reviews), given.rounds)))
    request_us = 1e6 * harness.seconds(lambda: worker.send_req("next"), max(1, given.requests))
    harness.give(rank, {"seconds": seconds, "request_us": request_us})


if __name__ == "__main__":
    main(harness.given(), Worker.default_parser().parse_args())
