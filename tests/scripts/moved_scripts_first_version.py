import sys
from platoon_base.platoon_api.channel import Lieutenant


class OldLieutenant(Lieutenant):
    seen = {}

    def handle_control(self, req, worker_id):
        if "done" in req:
            self.seen[worker_id] = self.seen.get(worker_id, 0) + req["done"]
            return ""
        return "stop" if len(self.seen) == 2 and min(self.seen.values()) >= 5 else "train"


l = OldLieutenant()
l.init_control(int(sys.argv[1].split("=")[1]))
print("ready", flush=True)
sys.exit(l.serve())
