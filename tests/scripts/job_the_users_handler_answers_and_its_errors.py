from job_preamble import ConfigurationError, ProtocolError, raises, worker

assert worker.send_req("next", [1, 2]) == {"from": worker.global_rank, "twice": [2, 4]}
for req, error in (("unheard of", ProtocolError), ("platoon-init", ConfigurationError)):
    with raises(error, req):
        worker.send_req(req)
assert worker.send_req("next", []) == {"from": worker.global_rank, "twice": []}
