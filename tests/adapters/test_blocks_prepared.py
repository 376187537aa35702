"""`prepare` of Blocks: a main loop for one process, unchanged but for one line."""

import pytest
from needing import require
from programs import run_python
from scripts_here import script_path

require("blocks.main_loop")

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "script",
    [
        "averaged_gradients_are_those_of_the_longer_form",
        "asynchronous_workers_have_the_records_of_all",
    ],
)
def test_workers(run_blocks, script):
    run_blocks(script_path(f"blocks_prepared_{script}")).require_success()


def test_alone_nothing_changes(tmp_path):
    script = script_path("blocks_prepared_alone")
    run_python(script, tmp_path, cwd=tmp_path, timeout=400)


@pytest.mark.promise
def test_sums_walked_streams_and_own_files(run_blocks):
    outcome = run_blocks(script_path("blocks_prepared_sums_and_files")).require_success()
    told = [line for log in outcome.logs for line in log.splitlines() if "which another worker has written too" in line]
    assert len(told) == 1
    assert "SaveBoth writes" in told[0]
    assert "leader_only=(SaveBoth,)" in told[0]
