from hosts_preamble import *
from platoon_base.rules import EASGD

x = np.full(int(sys.argv[2]) if len(sys.argv) > 2 else 1000, 7.0, "float32")
worker.init_shared_params([x], EASGD())
say("shares")
target, last = float(rank), time.monotonic()
worst = 0.0
while not worker.should_stop:
    x += np.float32(0.05) * (np.float32(target) - x)
    worker.progress(steps=1)
    worker.sync_params()
    now = time.monotonic()
    worst, last = max(worst, now - last), now
    with open(os.path.join(sys.argv[1], f"x{rank}.new"), "w") as file:
        json.dump([float(x[0]), worst], file)
    os.replace(file.name, os.path.join(sys.argv[1], f"x{rank}"))
    time.sleep(0.01)
