"""Scripts written for the original Platoon, with new import lines alone: started by hand, as their users did."""

import sys
import textwrap

import numpy as np
import pytest
from by_hand import CONTROLLER, PREAMBLE, SERVE, WORKER, at, end, free_port, until
from saved_arrays import load
from scripts_here import script_path

from platoon_base import compat
from platoon_base.job.files import running

compat.apply()
pytest.importorskip("theano", reason="needs Theano: `make setup` installs it on Python 3.11")

pytestmark = pytest.mark.theano


def test_the_lstm_examples_protocol_between_processes_started_by_hand(start, tmp_path):
    port = free_port()
    controller = start(CONTROLLER, f"--control-port={port}")
    until(controller, "Controller is ready")
    first = start(WORKER, f"--control-port={port}", "--seed=1", f"--folder={tmp_path}")
    until(first, "Params init done 0")
    second = start(WORKER, f"--control-port={port}", "--seed=2", f"--folder={tmp_path}")
    until(second, "Params init done 1")
    end(first)
    end(second)
    output = end(controller)
    assert "validations of 2 workers" in output
    seen = [load(tmp_path / f"seen{rank}.npz") for rank in range(2)]
    np.testing.assert_allclose(seen[0]["w"], np.arange(4), atol=0.2)
    assert running() == []


def test_requests_are_json_in_both_directions(serve, work):
    controller, port = serve()
    worker = work(script_path("moved_scripts_requests_are_json_in_both_directions"), port)
    assert end(worker).split() == ["1", "0", "1", "0"]
    end(controller)


@pytest.mark.parametrize("kind", ["hand", "theano", "built-in"])
def test_rules_of_the_users_own_do_what_they_say(serve, work, monkeypatch, kind):
    monkeypatch.setenv("KIND", kind)
    controller, port = serve(SERVE, "-D", "cpu", "cpu")
    other = work(script_path("moved_scripts_rules_other"), port)
    until(other, "center of zeros")
    worker = work(script_path("moved_scripts_rules"), port)
    assert "as by hand" in end(worker)
    end(other)
    end(controller)


def test_no_update_of_a_users_rule_is_lost_and_no_nan_enters_the_center(serve, work):
    controller, port = serve(SERVE, "-D", "cpu", "cpu")
    text = script_path("moved_scripts_no_update_of_a_users_rule_is_lost_and_no_nan")
    workers = [work(text, port) for _ in range(2)]
    output = "".join(end(worker) for worker in workers)
    assert "w of the center would get a NaN or an infinity, so the center stays unchanged" in output
    end(controller)


def test_collectives_between_workers_whose_number_the_controller_was_told(serve, work):
    controller, port = serve(SERVE, "-D", "cpu", "cpu")
    text = script_path("moved_scripts_collectives_between_workers_whose_number")
    workers = [work(text, port) for _ in range(2)]
    assert all("all agree" in end(worker) for worker in workers)
    end(controller)


FIRST_VERSION = script_path("moved_scripts_first_version")


def test_scripts_of_the_first_version(serve, start):
    controller, port = serve(FIRST_VERSION)
    text = f"""
    import sys
    import numpy
    from platoon_base.platoon_api import channel
    from platoon_base.platoon_api.param_sync import EASGD

    device = channel.Soldier({port}) if sys.argv[1] == '1' else channel.Soldier(port={port})
    params = [numpy.zeros(3)]
    device.init_shared_params(params, param_sync_rule=EASGD(0.5), cleanup=sys.argv[1] == '1')
    print("center is there", flush=True)
    while device.send_req('next') != 'stop':
        params[0] += 1
        device.sync_params()
        device.send_req({{'done': 1}})
    """
    first = start(text, 1)
    until(first, "center is there")
    second = start(text, 0)
    end(second)
    end(first)
    end(controller)


def test_an_experiment_by_its_name(start, tmp_path):
    (tmp_path / "pong_worker.py").write_text(
        PREAMBLE.replace("args = ", "parser.add_argument('--seed', type=int)\nargs = ")
        + textwrap.dedent("""
        import os
        answer = worker.send_req('hi', args.seed)
        print(os.environ['PLATOON_DEVICE'], answer, worker.global_size)
        assert worker.all_reduce(numpy.ones(1), "+")[0] == 2
        if worker.global_rank == 1 and answer["info"] == 13:
            sys.exit(7)
        """)
    )
    for seed, status in ((5, 0), (13, 7)):
        words = ["pong", f"logs{seed}", "--single", "-D", "cpu", "cpu", f"--workers-args=--seed={seed}"]
        end(start(SERVE, *words, at(free_port())), status)
        logs = [(tmp_path / f"logs{seed}" / f"rank{rank}.log").read_text() for rank in range(2)]
        for rank in range(2):
            assert f"cpu {{'req': 'hi', 'id': {rank}, 'info': {seed}}} 2" in logs[rank]
    assert running() == []


def test_shared_memory_by_the_size_of_an_array(serve, work):
    controller, port = serve(SERVE, "-D", "cpu", "cpu")
    text = script_path("moved_scripts_shared_memory_by_the_size_of_an_array")
    workers = [work(text, port) for _ in range(2)]
    for worker in workers:
        end(worker)
    end(controller)


def test_a_process_that_only_serves_mini_batches(serve, work, start):
    data_port = free_port()
    controller, port = serve()
    server = start(
        f"""
        import numpy
        from platoon_base.platoon_api.channel import Lieutenant
        l = Lieutenant()
        l.init_data({data_port})
        for i in range(5):
            l.send_mb([numpy.arange(3) + i])
        """
    )
    worker = work(
        f"""
        worker.init_mb_sock({data_port}, data_hwm=10)
        assert [worker.recv_mb()[0].tolist() for i in range(5)] == [[i, i + 1, i + 2] for i in range(5)]
        try:
            worker.recv_mb()
        except ConnectionError as exc:
            print(exc)
        """,
        port,
    )
    assert "has stopped sending batches: it was closed before the end of the data" in end(worker)
    end(server)
    end(controller)


def test_a_script_that_imports_theano_first_is_started_by_platoon_run(serve, start, tmp_path):
    controller, port = serve()
    text = "import theano\nfrom theano import tensor\n" + PREAMBLE + "print(sys.argv[1], worker.send_req('x')['id'])"
    worker = start(text, at(port), before=(sys.executable, "-m", "platoon_base", "run"))
    assert f"{at(port)} 0" in end(worker)
    end(controller)
    done = start(
        "import os; print(os.environ.get('X', 'none'), __name__)", before=(sys.executable, "-m", "platoon_base", "run")
    )
    assert "none __main__" in end(done)


def test_a_worker_of_another_launcher_joins_its_job_whatever_the_port(run_job):
    outcome = run_job(script_path("moved_scripts_a_worker_of_another_launcher_joins_its_job")).require_success()
    assert "the controller of this job has no handler for requests" in outcome.reported["error 1"]
