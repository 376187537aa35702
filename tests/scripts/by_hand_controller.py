import sys
from platoon_base.platoon_api.channel import Controller


class LSTMController(Controller):
    def __init__(self, max_mb, patience, valid_freq, min_workers, default_args):
        super().__init__(**default_args)
        self.max_mb = int(max_mb)
        self.patience = patience
        self.valid_freq = valid_freq
        self.min_workers = min_workers
        self.seen = {}
        self.uidx = 0
        self.valid = False
        self.history_errs = []
        self.bad_counter = 0
        self._stop = False

    def handle_control(self, req, worker_id, req_info):
        control_response = ""
        if req == "next":
            if self._stop:
                control_response = "stop"
            elif self.valid:
                self.valid = False
                control_response = "valid"
            else:
                control_response = "train"
        elif req == "done":
            self.uidx += req_info["train_len"]
            self.seen[worker_id] = self.seen.get(worker_id, 0) + 1
            if self.uidx % self.valid_freq == 0:
                self.valid = True
        elif req == "pred_errors":
            valid_err = req_info["valid_err"]
            self.history_errs.append([valid_err, req_info["test_err"]])
            if valid_err <= min(e[0] for e in self.history_errs):
                self.bad_counter = 0
                control_response = "best"
            else:
                self.bad_counter += 1
                if self.bad_counter > self.patience:
                    self._stop = True
        if self.uidx >= self.max_mb and len(self.seen) >= self.min_workers:
            self._stop = True
        return control_response


def lstm_control(saveFreq=1110, saveto=None):
    parser = Controller.default_parser()
    parser.add_argument("--max-mb", default=80, type=int)
    parser.add_argument("--patience", default=1000, type=int)
    parser.add_argument("--valid-freq", default=20, type=int)
    parser.add_argument("--min-workers", default=2, type=int)
    args = parser.parse_args()
    l = LSTMController(
        args.max_mb, args.patience, args.valid_freq, args.min_workers, Controller.default_arguments(args)
    )
    print("Controller is ready")
    status = l.serve()
    print("Processed", l.uidx, "with", len(l.history_errs), "validations of", len(l.seen), "workers")
    return status


if __name__ == "__main__":
    sys.exit(lstm_control())
