import sys
import threading
import numpy
from platoon_base.platoon_api.channel import Controller


class SumController(Controller):
    done, total = 0, 0.0

    def handle_control(self, req, worker_id, req_info):
        if req == "sum":
            self.done, self.total = self.done + 1, self.total + req_info
        return "stop" if self.done >= 40 else "go"


def send(controller):
    rng = numpy.random.RandomState(0)
    for i in range(48):  # more than are summed: the workers hold some when they stop
        controller.send_mb([numpy.full((64, 100), i % 10, dtype="float32"), numpy.array([i])])


parser = Controller.default_parser()
controller = SumController(**Controller.default_arguments(parser.parse_args()))
thread = threading.Thread(target=send, args=(controller,), daemon=True)
thread.start()
print("ready", flush=True)
status = controller.serve()
print("summed", controller.done, controller.total / 6400)
sys.exit(status)
