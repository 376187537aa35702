"""Report progress and a value, then wait for the file that lets the worker end."""

from job_preamble import Path, await_file, worker

worker.progress(steps=5, epoch=2, loss=0.75)
worker.barrier()
if worker.is_leader:
    worker.report({"val": 0.5, "note": "text"})
await_file(Path("go"))
