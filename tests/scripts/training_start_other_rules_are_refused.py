from job_preamble import DiLoCo, PlatoonError, np, os, rank, worker

p = np.zeros(3)


def refused(name, *rule):
    try:
        worker.init_shared_params([p], *rule)
    except PlatoonError as exc:
        worker.report({name: str(exc)})


# Trainings are compared by their numbers, and those that are refused count too.
if rank == 0:
    worker.advanced.begin_averages()
worker.barrier("averages")
if rank:
    refused("mode", DiLoCo())
else:
    worker.init_shared_params([p], DiLoCo(outer_lr=0.7))
worker.barrier("shared")
if rank:
    refused("argument", DiLoCo(outer_lr=0.1))
    os.environ["PLATOON_RULE"] = "DiLoCo(momentum=0.5)"
    refused("environment")
    worker.init_shared_params([p], DiLoCo())
