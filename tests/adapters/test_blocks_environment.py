"""What workers import with Blocks and Fuel, and what is said where one of them is missing."""

import pytest
from programs import run_python
from scripts_here import script_path

from platoon_base import compat


def require_blocks():
    compat.apply()
    pytest.importorskip("blocks.main_loop", reason="needs Blocks: BLOCKS=/path/to/a/checkout make test")


@pytest.mark.blocks
@pytest.mark.theano
def test_forked_workers_use_what_fuel_and_blocks_import(platoon, tmp_path):
    """Fuel brings HDF5 and compressors with threads of their own, imported before the fork."""
    require_blocks()
    script = script_path("blocks_environment_forked_workers_read")
    done = platoon("launch", "-n", 2, "--log-dir", "logs", script)
    logs = [(tmp_path / "logs" / f"rank{rank}.log").read_text() for rank in range(2)]
    assert done.returncode == 0, "\n".join(logs)
    assert [log.splitlines()[-1] for log in logs] == ["all read"] * 2


@pytest.mark.parametrize(("lacks", "name"), [("blocks", "ParameterSync"), ("fuel", "shard_stream")])
def test_what_is_not_installed_is_named_with_the_remedy(lacks, name):
    code = f"import sys; sys.modules[{lacks!r}] = None; from platoon_plugins.blocks import EASGD, {name}"
    done = run_python("-c", code, status=1)
    assert f"BackendUnavailableError: {name} needs {lacks.capitalize()}" in done.stderr
    assert "platoon doctor" in done.stderr
