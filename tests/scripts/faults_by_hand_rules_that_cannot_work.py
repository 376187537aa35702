import numpy

from by_hand_preamble import EASGD, worker
from faults_by_hand_rules import Fails, NoFunction, NoMaster, NoUpdate, Nothing, OtherInputs, Param, WrongShapes
from faults_by_hand_rules import attempt

attempt(worker.sync_params)
attempt(worker.init_shared_params, [Param()], NoMaster())
attempt(worker.init_shared_params, [Param()], EASGD)
attempt(EASGD, 1.5)
attempt(worker.init_shared_params, [Param()], NoFunction())
attempt(worker.init_shared_params, [Param()], NoUpdate())
attempt(worker.init_shared_params, None, EASGD(0.5))
attempt(worker.init_shared_params, Param(), EASGD(0.5))
for rule in (Nothing, Fails, WrongShapes, OtherInputs):
    param = Param()
    worker.init_shared_params([param], rule())
    attempt(worker.sync_params)
    numpy.testing.assert_array_equal(worker.shared_params[0], 1)
    numpy.testing.assert_array_equal(param.value, 1)
    worker.lock(timeout=0)  # the rule's lock is free again
    worker.unlock()
    worker.handle.release_shared_params()
