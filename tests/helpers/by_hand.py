"""Scripts as users of the original Platoon wrote them, but for their import lines, and how they are started by hand."""

import contextlib
import os
import socket
import subprocess
import sys

from scripts_here import written

WAIT_S = 100


def free_port():
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def terminals(folder):
    """Give a function that starts a script in a terminal of its own, so to speak; what runs at the end is ended."""
    processes = []

    def run(script, *args, before=(sys.executable,), **environment):
        script = written(script, folder / f"script{len(processes)}.py")
        process = subprocess.Popen(
            [*map(str, (*before, script, *args))],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        return process

    try:
        yield run
    finally:
        for process in reversed(processes):  # workers first
            process.terminate()
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def end(process, status=0):
    """Wait for the end of a process; returns its output."""
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == status, output
    return output


def until(process, text):
    """Read the output of a process until a line has this text; returns what was read."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"no {text!r} in:\n{''.join(lines)}")


def at(port):
    return f"--control-port={port}"


SERVE = """
import sys
from platoon_base.platoon_api.channel import Controller

class MyController(Controller):
    def handle_control(self, req, worker_id, req_info):
        return {"req": req, "id": worker_id, "info": req_info}

args = Controller.default_parser().parse_args()
controller = MyController(**Controller.default_arguments(args))
print("ready", flush=True)
sys.exit(controller.serve())
"""

PREAMBLE = """
import sys
import numpy
from platoon_base.platoon_api.channel import Worker
from platoon_base.platoon_api.param_sync import ASGD, EASGD, ParamSyncRule

parser = Worker.default_parser()
args = parser.parse_args()
worker = Worker(**Worker.default_arguments(args))
"""

CONTROLLER = """
import sys
from platoon_base.platoon_api.channel import Controller


class LSTMController(Controller):
    def __init__(self, max_mb, patience, valid_freq, min_workers, default_args):
        super(LSTMController, self).__init__(**default_args)
        self.max_mb = int(max_mb)
        self.patience = patience
        self.valid_freq = valid_freq
        self.min_workers = min_workers
        self.seen = {}
        self.uidx = 0
        self.valid = False
        self.history_errs = []
        self.bad_counter = 0
        self._stop = False

    def handle_control(self, req, worker_id, req_info):
        control_response = ""
        if req == 'next':
            if self._stop:
                control_response = 'stop'
            elif self.valid:
                self.valid = False
                control_response = 'valid'
            else:
                control_response = 'train'
        elif req == 'done':
            self.uidx += req_info['train_len']
            self.seen[worker_id] = self.seen.get(worker_id, 0) + 1
            if self.uidx % self.valid_freq == 0:
                self.valid = True
        elif req == 'pred_errors':
            valid_err = req_info['valid_err']
            self.history_errs.append([valid_err, req_info['test_err']])
            if valid_err <= min(e[0] for e in self.history_errs):
                self.bad_counter = 0
                control_response = 'best'
            else:
                self.bad_counter += 1
                if self.bad_counter > self.patience:
                    self._stop = True
        if self.uidx >= self.max_mb and len(self.seen) >= self.min_workers:
            self._stop = True
        return control_response


def lstm_control(saveFreq=1110, saveto=None):
    parser = Controller.default_parser()
    parser.add_argument('--max-mb', default=80, type=int)
    parser.add_argument('--patience', default=1000, type=int)
    parser.add_argument('--valid-freq', default=20, type=int)
    parser.add_argument('--min-workers', default=2, type=int)
    args = parser.parse_args()
    l = LSTMController(args.max_mb, args.patience, args.valid_freq, args.min_workers,
                       Controller.default_arguments(args))
    print("Controller is ready")
    status = l.serve()
    print("Processed", l.uidx, "with", len(l.history_errs), "validations of", len(l.seen), "workers")
    return status


if __name__ == '__main__':
    sys.exit(lstm_control())
"""

WORKER = """
from __future__ import print_function

import sys
import numpy
from platoon_base.platoon_api.channel import Worker
from platoon_base.platoon_api.param_sync import EASGD
import theano
from theano import tensor


def train(worker, seed, folder):
    rng = numpy.random.RandomState(seed)
    true = numpy.arange(4.)
    w = theano.shared(rng.randn(4), name='w')
    b = theano.shared(rng.randn(), name='b')
    x, y = tensor.dmatrix('x'), tensor.dvector('y')
    cost = tensor.sqr(tensor.dot(x, w) + b - y).mean()
    f = theano.function([x, y], cost, updates=[(p, p - 0.1 * tensor.grad(cost, p)) for p in (w, b)])
    error = theano.function([x, y], cost)
    worker.init_shared_params([w, b], param_sync_rule=EASGD(0.5))
    print("Params init done", worker.global_rank)
    valid_x = numpy.random.RandomState(99).randn(50, 4)
    step = worker.send_req('next')
    best = None
    while step != 'stop':
        if step == 'train':
            for i in range(5):
                data = rng.randn(16, 4)
                f(data, data.dot(true) + 1)
            worker.sync_params(synchronous=True)
            worker.send_req('done', dict(train_len=5))
        if step == 'valid':
            worker.copy_to_local()
            valid_err = float(error(valid_x, valid_x.dot(true) + 1))
            res = worker.send_req('pred_errors', dict(test_err=1.0, valid_err=valid_err))
            if res == 'best':
                best = valid_err
        step = worker.send_req('next')
    numpy.savez('%s/seen%d.npz' % (folder, worker.global_rank), w=w.get_value(), b=b.get_value(), best=best or 9,
                shared=worker.shared_params[0])
    worker.close()


if __name__ == '__main__':
    parser = Worker.default_parser()
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--folder')
    args = parser.parse_args()
    train(Worker(**Worker.default_arguments(args)), args.seed, args.folder)
"""
