from job_preamble import np, start_late, subprocess, sys, worker

if worker.global_rank == 0:
    late = start_late(sys.argv[2], stdin=subprocess.PIPE)
while 2 not in worker.advanced.sum_pairs("n", {})[1]:
    pass
assert (worker.all_reduce(np.ones(3)) == 2).all()
if worker.global_rank == 0:
    late.communicate(b"go", timeout=60)
    assert late.returncode == 0
