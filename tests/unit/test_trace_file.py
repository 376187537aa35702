"""The file of ``--trace``: an error in making it is said, and changes nothing of the job."""

import json
import logging

import pytest

from platoon_base.cli.observers import Observers
from platoon_base.cli.trackers.trace import TraceFile
from platoon_base.shm.phases import COMPUTE

pytestmark = pytest.mark.base


@pytest.mark.parametrize(("phase", "made"), [(COMPUTE, True), (99, False)], ids=["a phase", "an unknown phase"])
def test_an_error_costs_the_trace_and_not_the_job(tmp_path, caplog, phase, made):
    """A worker of another release may know phases that the launcher does not."""
    path = tmp_path / "trace.json"
    with caplog.at_level(logging.WARNING), Observers([TraceFile(path, tmp_path)]):
        (tmp_path / "trace").mkdir()
        part = {"rank": 0, "spans": [[phase, 1.0, 2.0]]}
        (tmp_path / "trace" / "rank0.json").write_text(json.dumps(part))
    assert path.exists() == made
    assert ("stopped writing for the trace" in caplog.text) != made
    assert not (tmp_path / "trace").exists()
