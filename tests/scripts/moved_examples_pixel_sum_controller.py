import sys
from multiprocessing import Process
import numpy
from platoon_base.platoon_api.channel import Controller


class BatchedPixelSumController(Controller):
    def __init__(self, batch_port, dataset, default_args):
        super().__init__(**default_args)
        self._batch_port, self._dataset, self._processed = batch_port, dataset, 0

    def start_batch_server(self):
        self.p = Process(target=self._send_mb)
        self.p.start()

    def _send_mb(self):
        assert self.asocket is None
        self.init_data(self._batch_port, data_hwm=10)
        for i in range(len(self._dataset) // 300):
            self.send_mb(self._dataset[300 * i : 300 * (i + 1)])
        self.asocket.close()
        print("Done Sending MB.")

    def handle_control(self, req, worker_id, req_info):
        if req == "get_data_shape":
            return self._dataset[0].shape
        if req == "done":
            self._processed += req_info["num_batches"]
        return "stop" if 300 * self._processed >= len(self._dataset) else "train"


parser = Controller.default_parser()
parser.add_argument("--batch_port", default=5566, type=int)
args = parser.parse_args()
data = numpy.arange(6000 * 5, dtype="float32").reshape(6000, 5) % 7
controller = BatchedPixelSumController(args.batch_port, data, Controller.default_arguments(args))
controller.start_batch_server()
print("ready", flush=True)
status = controller.serve()
print("sum", data.sum(axis=0).tolist())
sys.exit(status)
