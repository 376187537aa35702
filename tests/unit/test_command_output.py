"""The buffer in front of a command's standard output: errors are noted and forgiven, and nothing is written twice."""

import errno
import os
import threading

import pytest
from programs import run_python
from scripts_here import script_path

from platoon_base.system.output import OutputBuffer

pytestmark = pytest.mark.base


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
