from job_preamble import ASGD, FOLDER, exchange_pids, np, os, rank, signal, takes_part, tell, until
from job_preamble import waits_in, worker

x = np.zeros(100_000)
worker.init_shared_params([x], ASGD())
pids = exchange_pids(worker)
if rank == 1:
    try:
        worker.barrier("cut short")
    except KeyboardInterrupt:
        tell("caught")
    x += 1
    worker.sync_params()
    worker.report({"caught": 1})
    until(lambda: all(waits_in("meet the others", other) or not takes_part(other) for other in (0, 2)))
    worker.close()
else:
    if rank == 0:
        until(lambda: waits_in("barrier cut short", 1))
        os.kill(pids[1], signal.SIGINT)
    until((FOLDER / "caught").exists)
    x += 1
    worker.sync_params()
    assert worker.advanced.meet("the others") == [0, 2]
    worker.copy_to_local()
    assert (x == 3).all(), np.unique(x)
