import sys
import numpy
from platoon_base.platoon_api.channel import Controller


class Feeding(Controller):
    def handle_control(self, req, worker_id, req_info):
        self.send_mb([numpy.full(2, req_info)])
        return "train"


parser = Controller.default_parser()
controller = Feeding(**Controller.default_arguments(parser.parse_args()))
print("ready", flush=True)
sys.exit(controller.serve())
