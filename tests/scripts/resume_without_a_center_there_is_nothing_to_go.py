from job_preamble import worker

print("starts at", tuple(worker.resume_at), worker.take_kept("best"), flush=True)
worker.progress(steps=7, epoch=2)
worker.keep("best", [0.5, "x"])
