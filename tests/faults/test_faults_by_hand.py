"""Jobs of the original's API in which something is wrong: whose fault it is, who is told, and what goes on."""

import signal
import socket
import time

import psutil
import pytest
from by_hand import PREAMBLE, SERVE, at, end, free_port, until
from scripts_here import script_path

from platoon_base.job.files import running

pytestmark = pytest.mark.base

TRAIN = script_path("faults_by_hand_train").read_text()


def test_no_controller_at_the_port(work, serve):
    port = free_port()
    began = time.monotonic()
    output = end(work("", port), 1)
    assert f"there is no controller at port {port} of this host" in output
    assert time.monotonic() - began < 40
    controller, other = serve()
    quick = PREAMBLE.replace("default_arguments(args))", "default_arguments(args), socket_timeout=200)")
    output = end(work("", port, preamble=quick), 1)
    assert f"controllers have ports {other}: start the controller first" in output
    end(work("", other))
    end(controller)


def test_a_port_in_use(serve, start, work, tmp_path):
    controller, port = serve()
    second = start(SERVE, at(port))
    output = end(second, 1)
    assert f"cannot reserve port {port} (Address already in use" in output
    assert "`platoon jobs` lists your jobs" in output
    (tmp_path / "own_worker.py").write_text(PREAMBLE + "print(worker.send_req('x'))")
    third = start(SERVE, "own", "-D", "cpu", at(port))  # it starts its own worker, who needs no port
    output = end(third)
    assert f"port {port} is taken" in output
    assert "{'req': 'x'" in output
    end(work("assert worker.send_req('y')['req'] == 'y'", port))
    end(controller)


@pytest.mark.parametrize("port", ["0", "65536"])
def test_a_number_that_is_no_port(start, port):
    assert f"got port {port}: it must be a number from 1 to 65535" in end(start(SERVE, f"--control-port={port}"), 1)


def answering(body):
    """Return a controller with this body of handle_control."""
    return SERVE.replace('return {"req": req, "id": worker_id, "info": req_info}', body)


@pytest.mark.promise
def test_a_handler_that_raises_is_an_error_of_the_worker_that_asked(serve, work):
    body = "return sys.exit(7) if req == 'exit' else {'a': 1, 'bad': {1, 2}}[req] if req != 'late' else self.nothing"
    controller, port = serve(answering(body))
    worker = work(script_path("faults_by_hand_a_handler_that_raises_is_an_error"), port)
    lines = end(worker).splitlines()
    assert lines[0].startswith("ProtocolError the controller's handler raised KeyError on 'done': 'done'")
    assert "ConfigurationError got an answer of handle_control to 'bad' that JSON cannot represent" in lines[1]
    assert "AttributeError on 'late'" in lines[2]
    assert "names that begin with 'platoon-' are reserved" in lines[3]
    assert lines[4].startswith("ProtocolError the controller's handler raised SystemExit on 'exit': 7")
    assert "got a request 'a' that JSON cannot represent (Object of type ndarray" in lines[5]
    output = end(controller)
    assert "Traceback" in output
    assert "KeyError: 'done'" in output


@pytest.mark.parametrize(("ending", "own", "status"), [("1 / 0", 1, 1), ("sys.exit(3)", 3, 0), ("pass", 0, 0)])
def test_how_a_script_ended_that_was_started_by_hand(serve, work, ending, own, status):
    controller, port = serve()
    end(work(f"{TRAIN}train(3)\n{ending}", port), own)
    end(controller, status)


@pytest.mark.promise
def test_workers_notice_within_a_second_that_the_controller_was_killed(serve, work):
    controller, port = serve()
    worker = work(script_path("faults_by_hand_workers_notice_within_a_second"), port)
    until(worker, "shares")
    controller.kill()
    killed = time.monotonic()
    assert "the controller of this job has ended" in end(worker, 1)
    assert time.monotonic() - killed < 5  # with the end of the interpreter
    assert running() == []


@pytest.mark.promise
def test_nobody_listens_at_the_port(serve, work):
    controller, port = serve()
    assert "LISTEN" not in [each.status for each in psutil.Process(controller.pid).net_connections(kind="inet")]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    end(work("worker.send_req('x')", port))
    end(controller)


def test_a_process_is_one_worker(serve, work):
    controller, port = serve()
    worker = work(script_path("faults_by_hand_a_process_is_one_worker"), port)
    output = end(worker)
    assert "this process is a worker already" in output
    assert "nothing can be done after close()" in output
    end(controller)


def test_all_reduce_needs_the_number_of_workers(serve, work):
    controller, port = serve()
    output = end(work("worker.all_reduce(numpy.ones(2), '+')", port), 1)
    assert "all-reduce and similar calls need the fixed group" in output
    assert "Controller(devices=[...])" in output
    end(controller, 1)


def test_ctrl_c_ends_a_controller_whose_workers_have_not_all_come(serve, work):
    controller, port = serve(SERVE, "-D", "cpu", "cpu")
    end(work("worker.send_req('x')", port))  # it serves, and waits for the other one
    controller.send_signal(signal.SIGINT)
    end(controller, 128 + signal.SIGINT)
    assert running() == []


def test_ctrl_c_ends_workers_that_were_started_by_hand(serve, work):
    controller, port = serve()
    worker = work(script_path("faults_by_hand_ctrl_c_ends_workers_that_were_started"), port)
    until(worker, "shares")
    controller.send_signal(signal.SIGINT)
    end(controller, 128 + signal.SIGINT)
    assert "KeyboardInterrupt" in end(worker, -signal.SIGINT)
