"""The launcher for notebooks, in a real kernel and in plain Python."""

import json
import re
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from needing import needs

pytestmark = pytest.mark.timeout(400)
needs_cloudpickle = needs("keras", "cloudpickle", "needs cloudpickle: `make test` runs this in .nox/keras3")
RUN_NOTEBOOK = Path(__file__).parents[1] / "helpers" / "run_notebook.py"


@pytest.fixture
def notebook(run_command, tmp_path):
    """Run cells in a kernel of this Python; returns the outputs of each, as [kind, text]."""
    for name in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(name, reason="needs nbclient and ipykernel: `make test` runs this in .nox/keras3")

    def run(*cells, interrupt_at=0):
        (tmp_path / "cells.json").write_text(json.dumps([textwrap.dedent(cell) for cell in cells]))
        run_command(sys.executable, RUN_NOTEBOOK, tmp_path, interrupt_at).require()
        return json.loads((tmp_path / "outputs.json").read_text())

    return run


@needs_cloudpickle
def test_a_keras_model_is_trained_from_a_notebook(notebook):
    """By functions and data of the notebook; output and value of rank 0 come back, and errors of any worker."""
    before, trained, failed, after = notebook(
        """
        from platoon_plugins.keras import distribute, notebook_launcher, shard
        import keras
        import numpy as np
        x = np.random.RandomState(0).rand(64, 6).astype("float32")
        where = dict(num_processes=2, devices=["cpu", "cpu"])
        """,
        """
        def train(epochs):
            from platoon_base import connect
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            print("this is rank", connect().global_rank)
            xs, ys = shard(x, x[:, :1])
            history = model.fit(xs, ys, 2, epochs=epochs, verbose=0, callbacks=distribute()).history
            return connect().global_size, history["loss"]

        size, losses = notebook_launcher(train, (2,), **where)
        print(size, len(losses), losses[1] < losses[0])
        """,
        """
        def read():
            raise ValueError("no such data")

        def fail():
            from platoon_base import connect
            if connect().global_rank == 1:
                read()
            connect().barrier("never")

        notebook_launcher(fail, **where)
        """,
        "print('the kernel lives')",
    )
    assert before == []
    assert "".join(text for kind, text in trained if kind == "stream").splitlines() == ["this is rank 0", "2 2 True"]
    (shown,) = (text for kind, text in trained if kind == "display_data")  # one, which was replaced again and again
    assert re.match(r"train\(\)  2 workers on cpu .*\n", shown)
    assert re.search(r"^0 cpu +(finished|training) ", shown, re.MULTILINE)
    kind, text = failed[-1]
    assert kind == "error"
    assert "worker 1 failed: ValueError: no such data" in text
    assert 'raise ValueError("no such data")' in text  # the line of the cell
    assert after == [["stream", "the kernel lives\n"]]


@needs_cloudpickle
@pytest.mark.slow
def test_an_interrupt_of_the_kernel_ends_all_workers(notebook, tmp_path):
    waited, after = notebook(
        """
        def wait():
            import os, pathlib, threading
            pathlib.Path(f"waiting{os.getpid()}").touch()
            threading.Event().wait()

        from platoon_base import notebook_launcher
        notebook_launcher(wait, num_processes=2, devices=["cpu", "cpu"], grace_s=5)
        """,
        "print('the kernel lives')",
        interrupt_at=2,
    )
    assert waited[-1][0] == "error"
    assert "all workers have ended" in waited[-1][1]
    assert after == [["stream", "the kernel lives\n"]]
    pids = [int(path.name[len("waiting") :]) for path in tmp_path.glob("waiting*")]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@needs_cloudpickle
@pytest.mark.slow
def test_what_cannot_be_launched_is_refused(monkeypatch, tmp_path):
    from platoon_base import notebook_launcher
    from platoon_base.errors import ConfigurationError, WorkerFailedError

    monkeypatch.chdir(tmp_path)
    where = {"num_processes": 1, "devices": ["cpu"]}
    with pytest.raises(ConfigurationError, match="pass the function itself"):
        notebook_launcher("train", **where)
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match=r"cannot be sent to another process .*lock"):
        notebook_launcher(lambda: lock, **where)
    with pytest.raises(WorkerFailedError, match="cannot be sent back to the notebook"):
        notebook_launcher(lambda: __import__("threading").Lock(), **where)
    with pytest.raises(WorkerFailedError, match="rank 0 exited inside the function"):
        notebook_launcher(sys.exit, **where)
    refused = []

    def in_a_thread():
        try:
            notebook_launcher(int, **where)
        except ConfigurationError as exc:
            refused.append(str(exc))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert "was called in a thread" in refused[0]
    monkeypatch.setenv("PLATOON_JOB", str(tmp_path))
    with pytest.raises(ConfigurationError, match="was called by a worker"):
        notebook_launcher(int, **where)
