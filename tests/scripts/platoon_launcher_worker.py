import os
import sys
import numpy
from platoon_base.platoon_api.channel import Worker

parser = Worker.default_parser()
parser.add_argument("--exit", type=int, default=0)
parser.add_argument("--text", default="")
args = parser.parse_args()
worker = Worker(**Worker.default_arguments(args))
total = worker.all_reduce(numpy.ones(1), "+")[0]
print("worker", worker.global_rank, "of", int(total), "on", os.environ["PLATOON_DEVICE"], repr(args.text))
if args.text == "fail" and worker.global_rank == 1:
    import warnings
    from platoon_base.errors import PlatoonWarning

    warnings.warn("of a worker", PlatoonWarning)
    raise RuntimeError("the reason why")
if args.text == "ask":
    print(worker.send_req("hello", 1))
sys.exit(args.exit if worker.global_rank == 1 else 0)
