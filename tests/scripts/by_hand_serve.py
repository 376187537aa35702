import sys
from platoon_base.platoon_api.channel import Controller


class MyController(Controller):
    def handle_control(self, req, worker_id, req_info):
        return {"req": req, "id": worker_id, "info": req_info}


args = Controller.default_parser().parse_args()
controller = MyController(**Controller.default_arguments(args))
print("ready", flush=True)
sys.exit(controller.serve())
