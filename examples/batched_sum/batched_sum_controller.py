"""The controller of the batched sum: it deals mini-batches out, and compares the workers' sums with its own.

    platoon-launcher batched_sum -D cpu cpu             # in this folder; starts batched_sum_worker.py twice

or by hand, each line in a terminal of its own:

    python batched_sum_controller.py -D cpu cpu         # how many workers will come
    python batched_sum_worker.py
    python batched_sum_worker.py

A batch goes to whichever worker is free, and waits in shared memory until that worker takes it. Empty arrays say that
no more come: the controller sends them until all workers have left.
"""

import sys
import threading

import numpy as np

from platoon_base.errors import PlatoonError
from platoon_base.platoon_api.channel import Controller

DATA_PORT = 5568
SHAPE = (1000, 100)


class SumController(Controller):
    """Adds the workers' sums."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.total = self.own_total = 0.0
        self.sent = 0
        self.batches = {}  # number of them, by worker

    def handle_control(self, req, worker_id, req_info):
        """Take in the sum of one batch."""
        if req != "sum":
            raise ValueError(f"got request {req!r}: send sum, with a number")
        self.total += req_info
        self.batches[worker_id] = self.batches.get(worker_id, 0) + 1
        return ""

    def send_all(self, number):
        """Send so many batches, and then that no more come."""
        rng = np.random.RandomState(0)
        try:
            while self.sent < number:
                batch = rng.randint(100, size=SHAPE).astype("float32")
                self.own_total += float(batch.sum(dtype="float64"))  # of small integers, so that sums are exact
                self.send_mb([batch])
                self.sent += 1
            while True:
                self.send_mb([np.empty(0, "float32")])
        except PlatoonError as exc:  # all workers have left, which is how it should end
            print(f"sent {self.sent} batches: {exc}", flush=True)


def main():
    """Serve one job; returns the exit status."""
    parser = Controller.default_parser()
    parser.set_defaults(data_port=DATA_PORT)
    parser.add_argument("--batches", type=int, default=200)
    args = parser.parse_args()
    controller = SumController(**Controller.default_arguments(args))
    threading.Thread(target=controller.send_all, args=(args.batches,), daemon=True).start()
    print("Controller is ready", flush=True)
    status = controller.serve()
    shares = ", ".join(f"{count} by worker {rank}" for rank, count in sorted(controller.batches.items()))
    print(f"batches summed: {shares}")
    print(f"sum of all: {controller.total:.0f}, the controller's own: {controller.own_total:.0f}")
    return status or int(controller.total != controller.own_total)


if __name__ == "__main__":
    sys.exit(main())
