"""Logs that grow: their lines for the screen, and their bytes for `platoon logs`."""

import io

import pytest

from platoon_base.cli.commands.logs import LogView
from platoon_base.cli.worker_output import LogLines

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
