from job_preamble import ASGD, np, os, worker
from deaths_head import die

x = np.zeros(1000)
if os.environ["SHARES"] == "True":
    worker.init_shared_params([x], ASGD())
    x += 1000
    worker.sync_params()
die()
