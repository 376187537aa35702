"""The controller of the LSTM example: it tells the workers when to train, when to validate and when to stop.

    platoon-launcher lstm -D cpu cpu                    # in this folder; starts lstm_worker.py twice
    platoon-launcher lstm -D cpu cpu -c --sync          # averaged gradients in place of EASGD

or by hand, each line in a terminal of its own:

    python lstm_controller.py --control-port 5567       # with --sync also -D cpu cpu: how many workers will come
    python lstm_worker.py --control-port 5567
    python lstm_worker.py --control-port 5567

The answer to `next` is `train`, `valid` or `stop`. A worker tells by `done` how many mini-batches it has trained on,
and by `pred_errors` its errors; `best` is the answer to the smallest validation error so far.
"""

import json
import sys

from platoon_base.platoon_api.channel import Controller


class LSTMController(Controller):
    """Validates every so many mini-batches, and stops early."""

    def __init__(self, max_mb, patience, valid_freq, **arguments):
        super().__init__(**arguments)
        self.max_mb, self.patience, self.valid_freq = max_mb, patience, valid_freq
        self.mode = "async"
        self.trained = 0  # mini-batches, of all workers together
        self.history = []  # (validation error, test error)
        self.best = None
        self.waited = 0  # validations since the best one
        self.to_validate = True  # before the training, too
        self.stopped = ""

    def handle_control(self, req, worker_id, req_info):
        """Answer one request of a worker."""
        if req == "mode":
            return self.mode
        if req == "next":
            return self.next()
        if req == "done":
            return self.done(req_info["train_len"])
        if req == "pred_errors":
            return self.pred_errors(req_info["valid_err"], req_info["test_err"])
        raise ValueError(f"got request {req!r}: send mode, next, done or pred_errors")

    def next(self):
        """Tell a worker what to do; the last mini-batches are followed by a validation, too."""
        if self.to_validate:
            self.to_validate = False
            return "valid"
        return "stop" if self.stopped else "train"

    def done(self, number):
        """Count what was trained on."""
        before, self.trained = self.trained, self.trained + number
        if before // self.valid_freq < self.trained // self.valid_freq:
            self.to_validate = True
        if self.trained >= self.max_mb:
            self.stopped = self.stopped or f"mini-batches >= {self.max_mb}"
        return ""

    def pred_errors(self, valid_error, test_error):
        """Compare a result with the best one so far."""
        self.history.append((valid_error, test_error))
        print(f"{self.trained} mini-batches: validation error {valid_error:.4f}, test {test_error:.4f}", flush=True)
        if self.best is None or valid_error < self.best[0]:
            self.best, self.waited = (valid_error, test_error), 0
            return "best"
        self.waited += 1
        if self.waited > self.patience:
            self.stopped = self.stopped or f"no better one in {self.waited} validations"
        return ""


class SyncLSTMController(LSTMController):
    """Gives all workers the same answers in the same order, so that they meet in each mini-batch.

    The k-th request of each worker gets the answer to the first k-th one that came.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mode = "sync"
        self.asked = {}  # number of requests, by worker
        self.answers = []

    def handle_control(self, req, worker_id, req_info):
        """Answer one request of a worker."""
        k = self.asked.get(worker_id, 0)
        self.asked[worker_id] = k + 1
        if k == len(self.answers):
            self.answers.append(super().handle_control(req, worker_id, req_info))
        return self.answers[k]


def main():
    """Serve one job; returns the exit status."""
    parser = Controller.default_parser()
    parser.add_argument("--sync", action="store_true", help="average gradients in each step")
    parser.add_argument("--max-mb", type=int, default=3000, help="Mini-batches of all workers.  [%(default)s]")
    parser.add_argument("--patience", type=int, default=10, help="Validations without a better one.  [%(default)s]")
    parser.add_argument("--valid-freq", type=int, default=200, help="Mini-batches between validations.  [%(default)s]")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    args = parser.parse_args()
    kind = SyncLSTMController if args.sync else LSTMController
    controller = kind(args.max_mb, args.patience, args.valid_freq, **Controller.default_arguments(args))
    print("Controller is ready", flush=True)
    status = controller.serve()
    if controller.best is None:
        return status
    result = {
        "valid_error": controller.best[0],
        "test_error": controller.best[1],
        "first_valid_error": controller.history[0][0],
        "mini_batches": controller.trained,
        "validations": len(controller.history),
        "stopped_by": controller.stopped,
    }
    print(json.dumps(result, indent=2))
    if args.summary:
        with open(args.summary, "w") as file:
            json.dump(result, file, indent=2)
    return status


if __name__ == "__main__":
    sys.exit(main())
