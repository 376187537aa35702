from job_preamble import ProtocolError, worker

try:
    worker.barrier("this" if worker.global_rank else "that")
except ProtocolError as exc:
    worker.report({str(worker.global_rank): str(exc)})
