from job_preamble import files_of, np, os, worker

rows = np.random.default_rng(0).normal(size=(1000, 33)).astype(np.float32)


def names():
    return sorted(name for name in os.listdir("/dev/shm") if files_of(worker).job in name and "-data-" in name)
