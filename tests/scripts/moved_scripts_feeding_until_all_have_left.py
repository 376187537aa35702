import sys
import threading
import numpy
from platoon_base.platoon_api.channel import Controller


class Feeding(Controller):
    error = "none"
    said = set()

    def feed(self):
        try:
            while True:
                self.send_mb([numpy.ones(2)])
        except Exception as exc:
            self.error = f"{type(exc).__name__}: {exc}"

    def handle_control(self, req, worker_id, req_info):
        if req == "say":
            self.said.add(req_info)
        elif req == "is it said":
            return req_info in self.said
        else:
            sender.join(req_info)
            return self.error


parser = Controller.default_parser()
controller = Feeding(**Controller.default_arguments(parser.parse_args()))
sender = threading.Thread(target=controller.feed, daemon=True)
sender.start()
print("ready", flush=True)
status = controller.serve()
sender.join(30)
print("ended by", controller.error)
sys.exit(status)
