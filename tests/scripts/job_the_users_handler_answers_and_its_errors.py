from platoon_base import connect
from platoon_base.errors import ConfigurationError, ProtocolError

with connect() as worker:
    assert worker.send_req("next", [1, 2]) == {"from": worker.global_rank, "twice": [2, 4]}
    for req, error in (("unheard of", ProtocolError), ("platoon-init", ConfigurationError)):
        try:
            worker.send_req(req)
        except error as exc:
            assert req in str(exc)
        else:
            raise AssertionError(req)
    assert worker.send_req("next", []) == {"from": worker.global_rank, "twice": []}
