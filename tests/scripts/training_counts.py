from hosts_preamble import *
from platoon_base.rules import EASGD

x = np.zeros(10, "float32")
worker.init_shared_params([x], EASGD())
say("from", float(x[0]), worker.resume_at.epoch)
for epoch in range(max(1, worker.resume_at.epoch), 4):
    worker.progress(epoch=epoch)
    for _ in range(10):
        x += 1
        worker.progress(steps=1)
        worker.sync_params()
        time.sleep(0.02)
    if epoch == 2 and sys.argv[1] == "stop":
        worker.request_stop("enough")
        break
