from job_preamble import ConfigurationError, SharedData, rank, worker
from shared_data_preamble import rows

for i, other in enumerate((rows + rank, rows[: 1000 - rank], rows.astype(["f4", "f8"][rank]))):
    worker.barrier()
    try:
        SharedData(other, f"x{i}")
    except ConfigurationError as exc:
        print("refused:", exc)
    worker.barrier("the other has come")
