from job_preamble import ConfigurationError, np, rank, worker
from platoon_base.worker import require_same_values


def compare(name, **changes):
    values = {
        "w": np.arange(1000.0).reshape(10, 100),
        "rate": np.array(0.1, "f4"),
        "none": np.zeros((0, 3)),
        "nan": np.array([np.nan, 1.0]),
        "b": np.zeros(3),
    }
    if rank == 2:
        values.update(changes)
    try:
        require_same_values(worker, name, list(values.items()), "set them alike")
    except ConfigurationError as error:
        worker.report({f"{name} {rank}": str(error)})


compare("equal")
compare(
    "rounded",
    w=np.arange(1000.0).reshape(10, 100) * (1 + 1e-6),
    rate=np.array(0.10001, "f4"),
    nan=np.array([np.nan, 1 + 1e-6]),
)
compare("rate", rate=np.array(0.2, "f4"))
compare("bias", b=np.array([0, 0, 1e-9]))
compare("poison", nan=np.array([np.nan, np.nan]))
