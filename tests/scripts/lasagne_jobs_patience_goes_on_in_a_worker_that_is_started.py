from lasagne_preamble import *
import os

stop = StopOnPatience(3)
if worker.late:
    assert stop.best == 1.0
    assert not stop(1.5) and stop(1.5)  # the third and the fourth in a row
    assert StopOnPatience(3).best != 1.0
else:
    for value in (2.0, 1.0, 1.5):
        assert not stop(value)
    os.kill(os.getpid(), 9)
