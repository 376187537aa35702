"""Train the LSTM by the original's calls and by those of this package in turn: a worker of benchmarks/original_api.py.

Both do the same work: ten mini-batches, then EASGD. The original's script also asks the controller what to do before,
and tells it what was done after.
"""

import itertools
import json
import time
from pathlib import Path

from platoon_base.platoon_api.channel import Worker
from platoon_base.platoon_api.param_sync import EASGD

import lstm_model  # isort: skip  (Theano needs what the lines above prepare)

TRAIN_LEN, ALPHA = 10, 0.5


def by_the_original(worker, step, batches, rounds):
    """The loop of the original's example."""
    for _ in range(rounds):
        if worker.send_req("next") != "train":
            raise RuntimeError("this benchmark's controller always says train")
        for _ in range(TRAIN_LEN):
            step(*next(batches))
        worker.sync_params(synchronous=True)
        worker.send_req("done", {"train_len": TRAIN_LEN})


def by_the_handle(worker, step, batches, rounds):
    """The loop that a user of this package writes."""
    handle = worker.handle
    for _ in range(rounds):
        for _ in range(TRAIN_LEN):
            step(*next(batches))
        handle.progress(steps=TRAIN_LEN)
        handle.sync_params()


def main(args):
    """Measure args.repeats pairs of windows."""
    worker = Worker(**Worker.default_arguments(args))
    rank = worker.global_rank
    params = lstm_model.parameters(args.vocabulary, args.units)
    step = lstm_model.compile_step(params, seed=rank)
    worker.init_shared_params(params, EASGD(ALPHA))
    reviews = lstm_model.reviews(TRAIN_LEN * args.rounds, args.vocabulary, seed=rank)
    loops = [("original", by_the_original), ("handle", by_the_handle)]
    for _, loop in loops:
        loop(worker, step, itertools.cycle(reviews), 3)
    rows = []
    for repeat in range(args.repeats):
        for name, loop in loops if repeat % 2 == 0 else loops[::-1]:
            worker.handle.barrier("window")  # both windows see the same mini-batches
            began = time.perf_counter()
            loop(worker, step, iter(reviews), args.rounds)
            rows.append({"repeat": repeat, "api": name, "seconds": time.perf_counter() - began})
    began = time.perf_counter()
    for _ in range(args.requests):
        worker.send_req("next")
    request_us = 1e6 * (time.perf_counter() - began) / max(1, args.requests)
    Path(args.folder, f"{rank}.json").write_text(json.dumps({"rank": rank, "rows": rows, "request_us": request_us}))


if __name__ == "__main__":
    parser = Worker.default_parser()
    parser.add_argument("--folder")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--units", type=int)
    main(parser.parse_args())
