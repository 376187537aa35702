import sys
from platoon_base.platoon_api.channel import Controller


class LSTMController(Controller):
    def __init__(self, seed, default_args):
        super().__init__(**default_args)
        self.nb_worker = len(self._devices)
        self.worker_ids_dict = dict(zip(self._workers, [i for i in range(len(self._workers))]))
        self.seed = seed

    def handle_control(self, req, worker_id, req_info):
        worker_id = self.worker_ids_dict[worker_id]
        if req == "splits":
            length = req_info["train_len"] // self.nb_worker
            return dict(train_splits=[length * worker_id, length * (worker_id + 1)])
        return self.seed


parser = Controller.default_parser()
parser.add_argument("--seed", default=1234, type=int)
args = parser.parse_args()
controller = LSTMController(args.seed, Controller.default_arguments(args))
print("ready", flush=True)
sys.exit(controller.serve())
