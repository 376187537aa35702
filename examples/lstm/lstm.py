"""The LSTM example without a controller script: all workers run this one, and agree among themselves.

Start it with `platoon launch -n 2 examples/lstm/lstm.py` for two workers and asynchronous training by the default
rule, with `platoon launch -n 2 examples/lstm/lstm.py --sync` for averaged gradients, or with
`python examples/lstm/lstm.py` alone.
"""

import argparse
import contextlib
import json

from platoon_base import compat, connect

compat.apply()  # what Theano needs on today's Python, under plain `python` too

import lstm_data  # noqa: E402
import lstm_network  # noqa: E402

from platoon_base.schedule import Patience  # noqa: E402
from platoon_base.theano_ops import all_reduce  # noqa: E402

SYNC_EVERY = 10


def main(max_mb=3000, patience=10, valid_freq=200, sync=False, full=False, summary=None):
    """Train until the validation error has stopped falling, or for so many mini-batches; returns the summary."""
    worker = connect()
    size = lstm_network.FULL if full else lstm_network.SMALL
    train_set, valid_set, test_set = lstm_data.load(size["vocabulary"])
    params = lstm_network.parameters(**size)
    average = (lambda gradients: all_reduce(*gradients, op="mean")) if sync else list
    step = lstm_network.compile_step(params, worker.global_rank, average)
    wrong = lstm_network.compile_wrong(params)
    worker.init_shared_params(params)  # gives all workers the first one's values

    def error(texts, labels):
        """Return the error of the center on all texts; each worker takes its part of them."""
        part = list(lstm_data.in_order(texts, labels, worker.global_rank, worker.global_size))
        with contextlib.nullcontext() if sync else worker.center_params():
            count = sum(int(wrong(*batch)) for batch in part)
        return worker.reduce_metrics({"error": (count, sum(len(batch[2]) for batch in part))})["error"]

    batches = lstm_data.shuffled(*train_set, seed=worker.global_rank)
    stop, test_error, reason = Patience(patience), None, f"mini-batches >= {max_mb}"
    trained = 0
    for trained in range(worker.global_size, max_mb + 1, worker.global_size):  # counts those of all workers
        loss = float(step(*next(batches)))
        worker.progress(steps=1, loss=loss)
        number = trained // worker.global_size
        if number % SYNC_EVERY == 0 and not sync:
            worker.sync_params()
        if number % max(1, valid_freq // worker.global_size) == 0:
            if stop.improved(valid_error := error(*valid_set)):
                test_error = error(*test_set)
            worker.report({"valid_error": valid_error})
            if worker.agree_to_stop() or stop.exhausted:  # the errors are the same on all workers
                reason = worker.stop_reason or f"no better one in {stop.waited} validations"
                break

    result = {
        "valid_error": stop.best,
        "test_error": test_error,
        "mini_batches": trained,
        "workers": worker.global_size,
        "stopped_by": reason,
    }
    worker.report({"valid_error": stop.best, "mini_batches": trained})
    if summary and worker.is_leader:
        with open(summary, "w") as file:
            json.dump(result, file, indent=2)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-mb", type=int, default=3000, help="mini-batches of all workers")
    parser.add_argument("--patience", type=int, default=10, help="validations without a better one")
    parser.add_argument("--valid-freq", type=int, default=200, help="mini-batches between validations")
    parser.add_argument("--sync", action="store_true", help="average gradients in each step")
    parser.add_argument("--full", action="store_true", help="the sizes of the original's example")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    print(json.dumps(main(**vars(parser.parse_args())), indent=2))
