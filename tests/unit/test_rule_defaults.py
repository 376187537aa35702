"""The rule and the period where a script names none: the environment's text is read, and never evaluated."""

import pytest

from platoon_base.errors import ConfigurationError
from platoon_base.rules import ASGD, EASGD, CenterMomentum, LocalSGD, default_period, default_rule, parse_rule
from platoon_base.rules.defaults import DEFAULT_PERIOD

pytestmark = pytest.mark.base


def test_without_variables_the_defaults_hold(monkeypatch):
    monkeypatch.delenv("PLATOON_RULE", raising=False)
    monkeypatch.delenv("PLATOON_EVERY_N_BATCHES", raising=False)
    assert default_rule().resolved(2) == type(default_rule())().resolved(2)
    assert DEFAULT_PERIOD == 10
    assert [default_period(rule) for rule in ("auto", CenterMomentum(), ASGD(), EASGD(), None)] == [1, 10, 10, 4, 10]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("EASGD", EASGD()),
        ("EASGD()", EASGD()),
        (" EASGD( alpha = 0.25 ) ", EASGD(alpha=0.25)),
        ("EASGD(alpha=None)", EASGD()),
        ("EASGD(moments=True)", EASGD(moments=True)),
        ("LocalSGD(moments=True)", LocalSGD(moments=True)),
        ("LocalSGD()", LocalSGD()),
        ("ASGD", ASGD()),
        ("CenterMomentum(gain=2, momentum=0.5)", CenterMomentum(gain=2, momentum=0.5)),
    ],
)
def test_the_variable_is_a_rule_as_a_script_writes_it(monkeypatch, text, rule):
    monkeypatch.setenv("PLATOON_RULE", text)
    assert default_rule() == rule
    assert parse_rule(repr(rule)) == rule


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "write a rule"),
        ("EASGD(0.5)", "by name"),
        ("EASGD(alpha=)", "write a rule"),
        ("EASGD(alpha=1/2)", "plain numbers"),
        ("EASGD(**{})", "has no argument None"),
        ("EASGD(alpha=__import__('os').abort())", "plain numbers"),
        ("__import__('os').abort()", "write a rule"),
        ("(" * 5000, "write a rule"),
        ("\0", "write a rule"),
        ("SGD", "there is no rule SGD; choose one of ASGD, AveragedEASGD, "),
        ("Adopt(rule=None)", "there is no rule Adopt"),
        ("parse_rule(text='ASGD')", "there is no rule parse_rule"),
        ("EASGD(beta=0.5)", "EASGD has no argument beta; it has alpha, moments"),
        ("ASGD(alpha=0.5)", "it has none"),
        ("CenterMomentum(workers=3)", "it has alpha, momentum, gain"),
        ("EAMSGD(moments=True)", "the velocity has no part of the elastic force"),
        ("EASGD(alpha=7)", r"PLATOON_RULE='EASGD\(alpha=7\)': got alpha=7: outside"),
        ("EASGD(alpha='0.5')", "got alpha='0.5'"),
    ],
)
def test_other_texts_are_refused(monkeypatch, text, complaint):
    monkeypatch.setattr("os.environ", {"PLATOON_RULE": text})
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        default_rule()
    assert "PLATOON_RULE=" in str(caught.value)


@pytest.mark.parametrize(("text", "period"), [("1", 1), (" 4 ", 4), ("30", 30)])
def test_the_period_is_that_of_the_variable(monkeypatch, text, period):
    monkeypatch.setenv("PLATOON_EVERY_N_BATCHES", text)
    assert default_period() == period


@pytest.mark.parametrize("text", ["", "0", "-4", "2.5", "ten", "1e3", "²"])
def test_a_period_that_counts_no_batches_is_refused(monkeypatch, text):
    monkeypatch.setenv("PLATOON_EVERY_N_BATCHES", text)
    with pytest.raises(ConfigurationError, match="PLATOON_EVERY_N_BATCHES=.* whole number >= 1"):
        default_period()
