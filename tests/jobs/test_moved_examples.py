"""Short scripts in the forms of the original's own examples, of each of its versions, with new import lines alone."""

import textwrap

import pytest
from by_hand import SERVE, end, free_port
from saved_arrays import load
from scripts_here import script_path

from platoon_base import compat
from platoon_base.job.files import running

compat.apply()
pytest.importorskip("theano", reason="needs Theano: `make setup` installs it on Python 3.11")

pytestmark = pytest.mark.theano

PIXEL_SUM_CONTROLLER = script_path("moved_examples_pixel_sum_controller")


@pytest.mark.promise
def test_the_process_that_sends_mini_batches_ends_with_the_job_that_read_none(serve, work):
    controller, port = serve(PIXEL_SUM_CONTROLLER, f"--batch_port={free_port()}", "-D", "cpu")
    end(work("pass", port))
    assert "all workers have left" in end(controller)


def test_a_forked_child_of_the_controller_that_exits_leaves_the_job_to_its_parent(serve, work):
    fork = "import os\nif os.fork() == 0:\n    sys.exit()\nos.wait()\nprint("
    controller, port = serve(SERVE.replace("print(", fork, 1))
    assert end(work("print(worker.send_req('x')['id'])", port)).splitlines()[-1] == "0"
    end(controller)
    assert running() == []


SYNCHRONOUS_CONTROLLER = script_path("moved_examples_synchronous_controller")


def test_a_controller_that_divides_the_data_by_its_table_of_workers(serve, work):
    controller, port = serve(SYNCHRONOUS_CONTROLLER, "-D", "cpu", "cpu")
    text = script_path("moved_examples_a_controller_that_divides_the_data")
    workers = [work(text, port) for _ in range(2)]
    assert sorted(end(worker).splitlines()[-1] for worker in workers) == ["0 5 [10.0]", "5 10 [10.0]"]
    end(controller)


OF_2016 = """
import sys
import numpy
from platoon_base.platoon_api import channel
from platoon_base.platoon_api.param_sync import EASGD

control_port, batch_port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
mode = 'init' if len(sys.argv) > 4 else 'client'
params = {"w": numpy.full(3, 8.0)}
"""
MADE = [
    "s = channel.Soldier(cport=control_port)",
    "s = channel.Soldier(port=batch_port, cport=control_port)",
    "s = channel.Worker(cport=control_port)",
    "s = channel.Worker(port=batch_port, cport=control_port)",
    "s = channel.Worker(control_port=control_port, port=batch_port)",
]
SHARED = [
    "s.init_shared_params('DLTlstm', params.values(), param_sync_rule=EASGD(0.5), cleanup=(mode == 'init'))",
    "s.init_shared_params(job_name='sum', params=[params['w']], param_sync_rule=EASGD(0.5), cleanup=(mode == 'init'))",
    "s.init_shared_params(params.values(), param_sync_rule=EASGD(0.5))",
]


def test_workers_are_made_and_share_parameters_as_in_2015_and_2016(serve, start, tmp_path):
    controller, port = serve(SERVE, "-D", *["cpu"] * len(MADE))
    batch_port = free_port()
    workers = []
    for i, made in enumerate(MADE):
        text = f"{OF_2016}{made}\n{SHARED[i % len(SHARED)]}\n" + textwrap.dedent(
            f"""
            s.sync_params(synchronous=True)
            assert s.send_req(dict(done=10))["req"] == {{"done": 10}}
            numpy.savez(folder + "/seen{i}.npz", w=s.shared_params[0])
            """
        )
        workers.append(start(text, port, batch_port, tmp_path, *(["init"] if not i else [])))
    for i, worker in enumerate(workers):
        end(worker)
        assert load(tmp_path / f"seen{i}.npz")["w"].tolist() == [8.0] * 3
    end(controller)
