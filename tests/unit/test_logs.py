"""Logs that grow: their lines for the screen, and their bytes for `platoon logs`."""

import errno
import io
import os
import threading

import pytest
from programs import run_python
from scripts_here import script_path

from platoon_base.cli.commands.logs import LogView
from platoon_base.cli.worker_output import LogLines
from platoon_base.system.output import OutputBuffer

pytestmark = pytest.mark.base


def test_marked_lines_are_found_once_and_whole(tmp_path):
    logs = [tmp_path / "a", tmp_path / "b"]
    mark = "2026-11-24 16:12:47,123 rank 1 WARNING platoon_base.some: "
    logs[0].write_text(f"{mark}of an earlier run\n")
    lines = LogLines(logs)
    assert list(lines.new()) == []
    with logs[0].open("a") as file:
        file.write(f"x\n{mark}one\n{mark[:-10]}")
    assert list(lines.new()) == [(0, "one", True)]
    with logs[0].open("a") as file:
        file.write(f"{mark[-10:]}two\n")
    logs[1].write_bytes(mark.encode() + b"\xff\n" + b"." * 2**20 + f"\n{mark}end\n".encode())
    assert list(lines.new()) == [(0, "two", True), (1, "\ufffd", True)]
    assert list(lines.new()) == [(1, "end", True)]


def test_a_log_that_is_begun_anew_is_read_from_its_begin(tmp_path):
    path = tmp_path / "rank0.log"
    lines, stream = LogLines([path], whole=[0]), io.BytesIO()
    view = LogView(tmp_path, None, 0, stream)
    path.write_text("a long first line\n")
    view.show()
    assert [line.text for line in lines.new()] == ["a long first line"]
    path.write_text("anew\n")
    view.show()
    assert [line.text for line in lines.new()] == ["anew"]
    assert stream.getvalue() == b"[0] a long first line\n[0] anew\n"


def test_lines_of_a_log_of_several_chunks_are_shown_whole(tmp_path):
    text = b"a line of some length\n" * 100_000 + b"the end"
    (tmp_path / "rank0.log").write_bytes(text)
    stream = io.BytesIO()
    LogView(tmp_path, None, 0, stream).show(last=True)
    assert stream.getvalue() == b"".join(b"[0] %s\n" % line for line in text.split(b"\n"))


# The buffer of a command's output.


@pytest.fixture
def descriptor():
    """Of a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def lead_to(path, descriptor, flags=os.O_WRONLY):
    opened = os.open(path, flags)
    os.dup2(opened, descriptor)
    os.close(opened)


def test_the_first_error_is_kept_and_lost_output_comes_no_more(descriptor, tmp_path):
    buffer = OutputBuffer(descriptor)
    buffer.lenient = True
    buffer.write(b"to nobody")
    buffer.flush()
    lead_to("/dev/full", descriptor)
    buffer.write(b"x" * 100_000)
    buffer.flush()
    assert buffer.error.errno == errno.EPIPE
    lead_to(tmp_path / "file", descriptor, os.O_WRONLY | os.O_CREAT)
    assert buffer.write(b"there is room again") == 19
    buffer.flush()
    assert (tmp_path / "file").read_bytes() == b"there is room again"


def test_output_to_a_descriptor_that_was_closed_is_lost():
    reader, writer = os.pipe()
    buffer = OutputBuffer(writer)
    buffer.lenient = True
    os.close(writer)
    os.close(reader)
    for _ in range(3):
        buffer.write(b"x" * 100_000)
        buffer.flush()
    assert buffer.error.errno == errno.EBADF


def test_what_was_lost_is_not_asked_for_at_the_end():
    """When the buffer is collected, at the end of the interpreter, hardly anything can be called."""
    code = script_path("command_output_what_was_lost_is_not_asked_for_at_the_end")
    assert run_python(code).stderr == ""


def test_errors_are_raised_where_nobody_has_asked_for_less(descriptor):
    buffer = OutputBuffer(descriptor)
    buffer.write(b"to nobody")
    with pytest.raises(BrokenPipeError):
        buffer.flush()
    buffer.lenient = True
    buffer.flush()


def test_a_pipe_that_does_not_block_gets_all_of_it():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = os.urandom(1_000_000)
    received = []

    def read():
        with os.fdopen(reader, "rb") as file:
            received.append(file.read())

    thread = threading.Thread(target=read)
    thread.start()
    buffer = OutputBuffer(writer)
    for begin in range(0, len(data), 70_000):
        buffer.write(data[begin : begin + 70_000])
    buffer.flush()
    os.close(writer)
    thread.join()
    assert received == [data]


INTERRUPTED = script_path("command_output_interrupted")


def test_interrupts_write_no_line_twice():
    done = run_python(INTERRUPTED)
    numbers = [int(line) for line in done.stdout.split()]
    assert numbers[-1] == 20_000, done.stderr
    assert len(numbers) > 10_000  # of an interrupted one the line may be lost
    assert len(numbers) == len(set(numbers))
