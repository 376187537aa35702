"""Tracebacks for a screen, and the error files in which they travel."""

import json
import sys
import textwrap

import pytest

from platoon_base.worker import Worker
from platoon_base.worker_process.failure import (
    Failure,
    read_failure,
    shown_text,
    shown_traceback,
    users_frame,
    write_error_file,
)

pytestmark = pytest.mark.base


def error_of(path, text, **names):
    """Run a file, and return the exception that it ends with."""
    path.write_text(textwrap.dedent(text))
    try:
        exec(compile(path.read_text(), str(path), "exec"), names)
    except BaseException as exc:
        return exc
    raise AssertionError("no exception")


def test_frames_of_this_package_are_left_out_and_the_users_line_is_found(tmp_path):
    error = error_of(tmp_path / "train.py", "def step():\n    Worker(None)\nstep()", Worker=Worker)
    text = shown_traceback(error)
    assert "platoon_base" not in text
    assert text.splitlines()[0] == "Traceback (most recent call last):"
    frame = users_frame(error, str(tmp_path))
    assert (frame.filename, frame.lineno, frame.name) == (str(tmp_path / "train.py"), 2, "step")


def test_many_frames_of_libraries_are_counted(tmp_path):
    library = tmp_path / "lib" / "site-packages" / "deep"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text("def down(n):\n    if n == 0:\n        1 / 0\n    m = n - 1\n    down(m)\n")
    sys.path.insert(0, str(library.parent))
    try:
        error = error_of(tmp_path / "train.py", "import deep\ndeep.down(40)")
    finally:
        sys.path.pop(0)
        sys.modules.pop("deep", None)
    text = shown_traceback(error)
    assert "  ... 39 more (deep)\n" in text
    assert text.count("  File ") == 4, "this test's, the user's, and the last two"
    assert users_frame(error, str(tmp_path)).lineno == 2


def test_what_cython_has_compiled_is_no_code_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    library = {}
    exec(compile("def create(): raise BlockingIOError('locked')", "h5py/h5f.pyx", "exec"), library)
    error = error_of(tmp_path / "train.py", "def save():\n    create()\nsave()", create=library["create"])
    frame = users_frame(error, str(tmp_path))
    assert (frame.filename, frame.lineno) == (str(tmp_path / "train.py"), 2)


def test_an_error_in_the_users_syntax_has_its_line(tmp_path):
    error = error_of(tmp_path / "train.py", "a = 1\nb = = 2")
    assert users_frame(error, str(tmp_path)).lineno == 2


def test_chains_are_shown_as_python_does(tmp_path):
    error = error_of(
        tmp_path / "train.py",
        """
        try:
            {}["key"]
        except KeyError as exc:
            raise ValueError("second") from exc
        """,
    )
    text = shown_traceback(error)
    first, second = text.split("\nThe above exception was the direct cause of the following exception:\n\n")
    assert first.endswith("KeyError: 'key'\n")
    assert second.endswith("ValueError: second\n")


DUMP = """Input dimension mis-match. (input[0].shape[0] = 3, input[1].shape[0] = 2)
Apply node that caused the error: Elemwise{add,no_inplace}(x, y)
Toposort index: 0
Inputs types: [TensorType(float64, vector), TensorType(float64, vector)]
Inputs shapes: [(3,), (2,)]
Inputs strides: [(8,), (8,)]
Inputs values: [array([0., 0., 0.]), array([0., 0.])]
Outputs clients: [['output']]

Backtrace when the node is created(use Theano flag traceback.limit=N to make it longer):
  File "train.py", line 3, in <module>
    model = build()
  File "train.py", line 5, in build
    z = x + y

Debugprint of the apply node:
Elemwise{add,no_inplace} [id A] <TensorType(float64, vector)> ''

HINT: Re-running with most Theano optimization disabled could give you a back-trace.
"""


def test_of_theanos_description_of_its_graph_the_node_its_shapes_and_its_line_stay():
    assert shown_text(DUMP).splitlines() == [
        "Input dimension mis-match. (input[0].shape[0] = 3, input[1].shape[0] = 2)",
        "Apply node that caused the error: Elemwise{add,no_inplace}(x, y)",
        "Inputs shapes: [(3,), (2,)]",
        "The node was made here:",
        '  File "train.py", line 5, in build',
        "    z = x + y",
    ]


@pytest.mark.parametrize("text", ["x" * 10**6, "line\n" * 10**5])
def test_messages_are_bounded(text):
    assert len(shown_text(text)) < 2100
    assert shown_text(text).endswith("...")


def test_an_error_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "rank1.error.json"
    failure = Failure(1, "ValueError", "bad", 12.5, "a/train.py", 3, "f", "raise", "shown", "stack", log_begin=5)
    write_error_file(path, failure)
    assert read_failure(path, 1) == failure
    assert failure.what == "ValueError: bad"
    assert failure.where == "train.py:3"
    assert [each.name for each in tmp_path.iterdir()] == ["rank1.error.json"]


def test_an_error_file_of_pytorch_is_read_too(tmp_path):
    path = tmp_path / "error.json"
    extra = {"py_callstack": "Traceback ...\nKeyError: 'x'\n", "timestamp": "12"}
    path.write_text(json.dumps({"message": {"message": "KeyError: 'x'", "extraInfo": extra}}))
    found = read_failure(path, 2)
    assert (found.rank, found.kind, found.text, found.at) == (2, "KeyError", "'x'", 12.0)
    assert found.shown == extra["py_callstack"].rstrip()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"message": 3}', '{"message": {}}', '{"message": {"message": "x"}}'])
def test_files_that_are_none_are_no_failure(tmp_path, text):
    path = tmp_path / "error.json"
    path.write_text(text)
    assert read_failure(path, 0) is None
    assert read_failure(tmp_path / "missing", 0) is None


def test_the_same_failure_differs_in_numbers_alone():
    one = Failure(0, "ValueError", "rank 0 has 3 rows", 1.0, "train.py", 3)
    assert one.same_as(Failure(1, "ValueError", "rank 1 has 12 rows", 2.0, "train.py", 3))
    assert not one.same_as(Failure(1, "ValueError", "rank 1 has no rows", 2.0, "train.py", 3))
    assert not one.same_as(Failure(1, "ValueError", "rank 1 has 12 rows", 2.0, "train.py", 4))
