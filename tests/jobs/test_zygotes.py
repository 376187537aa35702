"""Workers of tests are forked from zygotes wherever that changes nothing: most of a test of Keras is imports."""

import pytest
import zygote

pytestmark = pytest.mark.base


def test_the_workers_of_a_later_job_are_forked(run_job):
    """A variable that differs from job to job, and is not among those of one worker, would prevent it."""

    def run():
        # With more threads NumPy starts some when it is imported, and such a process cannot fork.
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        script = "from platoon_base import connect\nprint('rank', connect().global_rank)"
        outcome = run_job(script, 3, environment=one_thread).require_success()
        assert [log.split()[-2:] for log in outcome.logs] == [["rank", str(rank)] for rank in range(3)]

    run()  # which asks for a zygote
    before = zygote.forked()
    run()
    assert zygote.forked() - before == 3


READS = """
job = os.environ['PLATOON_JOB']
late = os.environ['A'] == 'b'
late = 'PLATOON_RANK' not in os.environ
environment = {**{k: v for k, v in os.environ.items()}, 'A': 'b'}
subprocess.run(command, env=os.environ, check=True)
print(os.environ.get('A'))
"""
CHANGES = """
os.environ['A'] = 'b'
os.environ["THEANO_FLAGS"] += ",device=cpu"
os.environ |= {'A': 'b'}
os.environ.setdefault('A', 'b')
del os.environ['A']
change(os.environ)
from os import environ
os.putenv('A', 'b')
sys.path.insert(0, 'x')
sys.modules['theano'] = None
"""


def test_a_script_that_changes_what_its_imports_do_is_started_as_usual():
    """To read the environment changes nothing."""
    assert zygote.PREPARES.search(READS) is None
    assert [line for line in CHANGES.strip().splitlines() if not zygote.PREPARES.search(line)] == []
