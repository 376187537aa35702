"""Reported values and fingerprints: the last and the first of a name, in bounded tables."""

import pytest
from asking import DONE, Job, hello, require_failure, same

from platoon_base.coordination import messages as msg
from platoon_base.sharding import Position

pytestmark = pytest.mark.base


def test_reports_are_kept_by_name():
    job = Job(2).join(0, 1)
    assert job.answer(0, msg.Report(metrics={"loss": 0.5, "best": "a.npz"})) == DONE
    assert job.answer(1, msg.Report(metrics={"loss": 0.25})) == DONE
    assert job.coordinator.reported == {"loss": 0.25, "best": "a.npz"}


def test_the_names_of_reported_values_are_bounded():
    job = Job(1).join(0)
    assert job.answer(0, msg.Report(metrics={str(i): i for i in range(msg.MAX_REPORTED)})) == DONE
    assert job.answer(0, msg.Report(metrics={"7": 0.5})) == DONE
    require_failure(job.answer(0, msg.Report(metrics={"one": 1, "8": 0.5})), "ConfigurationError", "the limit is 1000")
    assert job.coordinator.reported["8"] == 8


def test_the_first_fingerprint_of_a_name_holds_for_all():
    job = Job(2).join(0, 1)
    assert job.answer(1, same("100 rows 1f00")) == DONE
    assert job.answer(0, same("100 rows 1f00")) == DONE
    differs = job.answer(0, same("90 rows 2c11"))
    require_failure(differs, "DataMismatchError", "the data", "rank 0 has 90 rows 2c11, rank 1 100 rows 1f00")
    assert differs.message.endswith(".\nSeed the split.")
    assert job.answer(0, same("90 rows 2c11", name="other data")) == DONE
    job.answer(1, same("0123456789abcdef", name="rows"))  # a checksum, which says nothing to a reader
    assert (
        job.answer(0, same("f" * 16, name="rows")).message == "rows differs between rank 1 and rank 0.\nSeed the split."
    )
    # One that joins later, or comes again, is compared too.
    job.coordinator.worker_ended(1, lost=True)
    job.coordinator.readmit(1, Position(1, 5, 5))
    job.answer("again", hello(rank=1))
    require_failure(job.answer("again", same("100 rows 0000")), "DataMismatchError", "rank 1 has 100 rows 0000")


def test_the_oldest_fingerprint_makes_room_for_the_newest():
    job = Job(1).join(0)
    for number in range(msg.MAX_FINGERPRINTS + 1):
        assert job.answer(0, same("a", name=f"batch {number}")) == DONE
    require_failure(job.answer(0, same("b", name="batch 1")), "DataMismatchError", "differs")
    assert job.answer(0, same("b", name="batch 0")) == DONE
