"""A worker of the LSTM example: it trains and validates when the controller says so; see lstm_controller.py."""

from platoon_base.platoon_api.channel import Worker  # isort: skip
import lstm_data
import lstm_network
import numpy as np

from platoon_base.platoon_api.param_sync import EASGD
from platoon_base.platoon_api.training.global_dynamics import AverageSGD

SYNC_EVERY = 10  # mini-batches from one synchronization to the next, and in one `train`


def evaluate(worker, wrong, data, sync):
    """Return the error on all texts; in step each worker takes its part of them."""
    texts, labels = data
    rank, size = (worker.global_rank, worker.global_size) if sync else (0, 1)
    count = np.array([sum(int(wrong(*batch)) for batch in lstm_data.in_order(texts, labels, rank, size))], "float64")
    return float((worker.all_reduce(count, "+") if sync else count)[0]) / len(texts)


def save_best(worker, params, path):
    """Save the parameters; one worker at a time."""
    worker.lock()
    try:
        np.savez(path, **{param.name: param.get_value() for param in params})
    finally:
        worker.unlock()


def main(worker, full=False, alpha=0.5, imdb=None, save=None):
    """Do as the controller says, until it says stop."""
    sync = worker.send_req("mode") == "sync"
    size = lstm_network.FULL if full else lstm_network.SMALL
    train_set, valid_set, test_set = lstm_data.load(size["vocabulary"], imdb)
    params = lstm_network.parameters(**size)
    compute, apply, gradients = lstm_network.compile_halves(params, seed=worker.global_rank)
    wrong = lstm_network.compile_wrong(params)
    # Gives all workers the first one's values; with averaged gradients the center is not used after that.
    worker.init_shared_params(params, EASGD(alpha))
    if sync:
        average = AverageSGD(worker)
        average.make_rule(gradients)

    batches = lstm_data.shuffled(*train_set, seed=worker.global_rank)
    step = worker.send_req("next")
    while step != "stop":
        if step == "train":
            for _ in range(SYNC_EVERY):
                compute(*next(batches))
                if sync:
                    average()
                apply()
            if not sync:
                worker.sync_params()
            # In step all workers report the same, once for all.
            worker.send_req("done", {"train_len": SYNC_EVERY * (worker.global_size if sync else 1)})
        if step == "valid":
            if not sync:
                worker.copy_to_local()
            errors = {
                "valid_err": evaluate(worker, wrong, valid_set, sync),
                "test_err": evaluate(worker, wrong, test_set, sync),
            }
            if worker.send_req("pred_errors", errors) == "best" and save and not (sync and worker.global_rank):
                save_best(worker, params, save)
        step = worker.send_req("next")
    worker.close()


if __name__ == "__main__":
    parser = Worker.default_parser()
    parser.add_argument("--full", action="store_true", help="the sizes of the original's example")
    parser.add_argument("--alpha", type=float, default=0.5, help="EASGD's elasticity.  [%(default)s]")
    parser.add_argument("--imdb", metavar="FOLDER", help="aclImdb, with the reviews to train on")
    parser.add_argument("--save", metavar="FILE", help="file for the best parameters, .npz")
    args = parser.parse_args()
    main(Worker(**Worker.default_arguments(args)), args.full, args.alpha, args.imdb, args.save)
