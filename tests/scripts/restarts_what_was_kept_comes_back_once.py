from job_preamble import ConfigurationError, ProtocolError, os, raises, worker

state = {"best": 0.5, "list": [1, "two", b"3", None]}
if worker.late:
    assert worker.take_kept("state") == state
    assert worker.take_kept("state", 7) == 7
    assert worker.take_kept("small") == "later"
    assert len(worker.take_kept("large")) == 200_000
    assert worker.take_kept("too large") is None
else:
    worker.keep("state", state)
    worker.keep("small", "earlier")
    worker.keep("small", "later")
    worker.keep("large", bytes(200_000))
    assert worker.take_kept("state") is None
    for name, value, error, text in (
        ("larger", bytes(300_000), ProtocolError, "Expected `bytes` of length <= 262144"),
        ("no data", object(), ProtocolError, "send only numbers, strings"),
        ("too large", bytes(100_000), ConfigurationError, "the limit is 262144"),
    ):
        with raises(error, text):
            worker.keep(name, value)
    os.kill(os.getpid(), 9)
