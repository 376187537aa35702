"""A worker whose values are not finite: the center and the other workers go on as if those had not been synchronized.

The center's rules keep out what is not finite, element by element. Synchronous rules hand it to everybody, in the same
step: see contract/test_collectives.py.
"""

import pytest
from scripts_here import script_path

from platoon_base import ASGD, EASGD, CenterMomentum
from platoon_base.centers import host_kernels as kernels

pytestmark = [pytest.mark.base, pytest.mark.slow]

KERNELS = [
    pytest.param({}, id="c", marks=pytest.mark.skipif(not kernels.HAVE_FUSED, reason="no C extension")),
    pytest.param({"PLATOON_NO_KERNELS": "1"}, id="numpy"),
]
RULES = [EASGD(0.5), ASGD(), CenterMomentum(0.5, 0.25, 2.0)]  # its b is 1/2: two workers
POLICIES = ["raise", "skip", "restore"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_update_of_the_others_arrives_while_one_is_poisoned(run_job, policy, kernel):
    """All at once; what is added are whole numbers, so that nothing may be lost by rounding either."""
    run_job(
        script_path("poison_every_update_of_the_others_arrives"), workers=3, args=[policy], environment=kernel
    ).require_success()


@pytest.mark.parametrize("first", [True, False], ids=["creator", "second"])
def test_a_model_that_is_not_finite_to_begin_with_is_refused_by_name(run_job, first):
    """Whether it is the first or not; the other shares its own meanwhile, and a second try is none too many."""
    run_job(script_path("poison_a_model_that_is_not_finite_to_begin"), args=[str(first)]).require_success()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_copy_to_global_refuses_what_is_not_finite_by_name(run_job, rule):
    """Nothing of it is written, also not of the parameters before; the rule goes on from where it was."""
    run_job(script_path("poison_copy_to_global_refuses_what_is_not_finite"), args=[repr(rule)]).require_success()


def test_a_state_beside_the_center_stays_finite_too(run_job):
    """A rule of the user's own, which divides by what has accumulated: an infinity there would stop all for ever."""
    outcome = run_job(script_path("poison_a_state_beside_the_center_stays_finite_too")).require_success()
    assert outcome.reported == {"moved": 5}
