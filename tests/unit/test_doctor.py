"""What `platoon doctor` shows of its checks; real environments are in jobs/test_doctor_environments.py."""

import pytest
from click.testing import CliRunner

from platoon_base.cli.commands import doctor
from platoon_base.cli.commands.doctor import Check


def seen(monkeypatch, checks, *options):
    """Return the lines of the command for the results of some checks."""
    monkeypatch.setattr(doctor, "checks", lambda: iter(checks))
    done = CliRunner().invoke(doctor.command, options)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


@pytest.mark.base
def test_what_is_not_here_and_what_nothing_here_uses_is_one_line(monkeypatch):
    compiler = Check("g++", False, "not found", "get g++", "machine", goes_with="Theano", absent=True)
    absent = Check("Theano", False, "not installed", "get Theano", "frameworks", absent=True)
    broken = Check("Keras", False, "cannot be imported", "set KERAS_BACKEND", "frameworks")
    works = Check("PyTorch", True, "2.13", group="frameworks")
    lines = seen(monkeypatch, [compiler, absent, works, broken])
    assert [line.split()[:2] for line in lines[:4]] == [
        ["frameworks"],
        ["ok", "PyTorch"],
        ["no", "Keras"],
        ["->", "set"],
    ]
    assert lines[4] == "not installed: g++, Theano (platoon doctor --all shows how to install them)"
    assert lines[5].startswith("1 of 2 checks are ok")
    there = absent._replace(works=True, finding="1.0.5", remedy="", absent=False)
    assert any("get g++" in line for line in seen(monkeypatch, [compiler, there]))
    assert lines[5].endswith("install what your scripts import")
    kernels = Check("compression between hosts", True, "C extension", group="this package")
    lines = seen(monkeypatch, [kernels, absent, broken])
    assert "ok  compression between hosts C extension" in lines
    assert lines[-1].endswith("no framework works, so only loops on NumPy arrays can be trained")
    every = seen(monkeypatch, [compiler, absent], "--all")
    assert any("get Theano" in line for line in every)
    assert not any("not installed:" in line for line in every)
