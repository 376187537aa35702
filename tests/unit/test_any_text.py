"""No path, name or text ends a job, whatever bytes it holds; what a user keeps or sends comes back as it was."""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile

import pytest
from programs import run_python
from scripts_here import script_path

from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import decode_reply, decode_request, decode_value, encode, encode_value
from platoon_base.errors import ProtocolError
from platoon_base.layout import Layout
from platoon_base.system.text import legible, to_bytes

pytestmark = pytest.mark.base

BYTES = b"caf\xe9"  # Latin-1
TEXT = "caf\udce9"  # what Python makes of them
READ = "caf\\udce9"

SCRIPT = script_path("any_text_names").read_text()


def launch(folder, *words, **environment):
    command = [sys.executable, "-m", "platoon_base", "launch", "-n", "2", *words]
    # Output that takes UTF-8 only, as in a desktop's terminal.
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict", "LC_ALL": "C.UTF-8", **environment}
    return subprocess.run(command, cwd=folder, env=strict, capture_output=True, timeout=300, check=False)


def test_a_job_whose_paths_and_texts_are_not_utf_8(tmp_path):
    folder = os.fsencode(tmp_path)
    os.mkdir(os.path.join(folder, b"work" + BYTES))
    script = os.path.join(folder, b"work" + BYTES, b"script" + BYTES + b".py")
    with open(script, "w") as file:
        file.write(SCRIPT)
    kept = os.path.join(folder, b"kept" + BYTES)
    with tempfile.TemporaryDirectory(suffix=TEXT, dir="/tmp") as short:  # the path of a socket has 107 bytes
        for run in "01":  # the second goes on where the first has ended
            done = launch(
                os.path.dirname(script), "--log-dir", b"logs" + BYTES, "--checkpoint-every", "60", "--resume", kept,
                script, BYTES, TMPDIR=short, RUN=run,
            )  # fmt: skip
            assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
            assert READ in done.stdout.decode()
    assert b"checkpoint-" in b" ".join(os.listdir(kept))
    assert sorted(os.listdir(os.path.join(os.path.dirname(script), b"logs" + BYTES)))


def test_what_fails_in_a_script_of_such_a_name_is_told(tmp_path):
    script = os.path.join(os.fsencode(tmp_path), b"script" + BYTES + b".py")
    with open(script, "w") as file:
        file.write("from platoon_base import connect\nconnect().barrier()\nraise ValueError('caf\\udce9')\n")
    done = launch(tmp_path, "--log-dir", b"logs" + BYTES, script)
    assert done.returncode == 1
    assert f"ValueError: {READ}" in done.stdout.decode()


MARKS = script_path("any_text_marks")


def test_what_the_console_would_take_for_commands_is_shown_as_it_is(platoon, tmp_path):
    done = platoon("launch", "-n", 1, "--log-dir", "logs:bug:", "--summary", "out.json", MARKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\[/b\]x +\[/i\] \[red\]y :bug:", done.stdout), done.stdout
    assert re.search(r"stopped_by +see \[/tmp\]", done.stdout), done.stdout
    assert "logs in logs:bug:" in done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["[/b]x"] == "[/i] [red]y :bug:"


@pytest.mark.parametrize(
    "value",
    [TEXT, [TEXT, 1], {TEXT: {TEXT: [TEXT, b"\xe9"]}, 3: TEXT}, {"a": "caf\\udce9"}, "\ud800", {"": {"é": None}}],
)
def test_what_a_user_sends_or_keeps_is_the_same_again(value):
    assert decode_value(encode_value(value)) == value
    assert decode_request(encode(msg.UserRequest(req="x", info=value))).info == value
    assert decode_reply(encode(msg.UserReply(answer=value))).answer == value


def test_names_and_texts_of_messages_are_legible():
    report = decode_request(encode(msg.Report(metrics={TEXT: TEXT, "loss": 1.0})))
    assert report == msg.Report(metrics={READ: READ, "loss": 1.0})
    vote = decode_request(encode(msg.StopVote(reason="\ud800")))
    assert vote.reason == "\\ud800"


@pytest.mark.parametrize("info", [b"\xc7\x00\x03", b"\xc7\x01\x01\xff", b"\xc7\x01\x02\xc3", b"\xd4\x02\x90"])
def test_extensions_that_stand_for_nothing_are_refused(info):
    encoded = encode(msg.UserRequest(req="x"))
    try:
        decode_request(encoded[:-1] + info)
    except ProtocolError:
        return
    assert info == b"\xd4\x02\x90"  # no pairs: an empty dict


def test_text_as_bytes():
    assert to_bytes("é\0a") == "é".encode() + b"\\x00a"
    assert to_bytes(TEXT) == READ.encode()
    assert to_bytes("aéé", 4) == "aé".encode()
    assert to_bytes("", 4) == b""
    assert legible("é") == "é"
    assert legible(TEXT) == READ


def test_parameters_may_have_any_name():
    import numpy as np

    layout = Layout.of([np.zeros(3)], [TEXT])
    assert layout.specs[0].name == READ
    assert len(layout.fingerprint) == 32


def test_a_launcher_with_more_than_a_thousand_open_files(tmp_path):
    """File descriptors above 1,023, as in notebook servers: select.select refuses them."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("needs a hard limit of 4,096 open files")
    (tmp_path / "script.py").write_text(
        "from platoon_base import connect\nwith connect() as worker:\n    worker.barrier()\n"
    )
    code = script_path("any_text_a_launcher_with_more_than_a_thousand_open")
    run_python(code, cwd=tmp_path, timeout=300)
