import sys
from platoon_base.platoon_api.channel import Controller


class Own(Controller):
    def handle_control(self, req, worker_id, req_info):
        return [req, worker_id, req_info, args.greeting]


parser = Controller.default_parser()
parser.add_argument("--greeting")
args = parser.parse_args()
sys.exit(Own(**Controller.default_arguments(args)).serve())
