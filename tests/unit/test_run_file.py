"""The file of `platoon launch --config`: what it sets, what wins over it, and what its errors say."""

import os
import re
from pathlib import Path

import pytest

from platoon_base.cli.commands.launch import command
from platoon_base.cli.launch_options import given_options
from platoon_base.errors import ConfigurationError
from platoon_base.rules import EASGD, LocalSGD, default_period, default_rule

pytestmark = pytest.mark.base


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Parse a command line with a file; returns click's context. Variables are those of this test alone."""
    monkeypatch.setattr("os.environ", {name: os.environ[name] for name in ("PATH", "HOME")})

    def run(text, *words):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return command.make_context("launch", ["--config", str(path), *words])

    return run


def refused(parse, text, *words):
    """Return the error of a file, without its folder."""
    with pytest.raises(ConfigurationError) as caught:
        parse(text, *words)
    return "\n".join(line[line.index("run.toml") :] for line in str(caught.value).splitlines())


def test_keys_are_the_long_names_of_options_and_the_command_line_wins(parse):
    text = """
        script = "train.py"
        args = ["--epochs", 10]
        workers = 2
        devices = ["cuda0", "cuda1"]
        hosts = ["n1", "n2"]
        checkpoint-every = 60
        host-timeout = 3
        timeout = ["heartbeat=0.5", "silence=2"]
        fail-fast = true
        allow-failures = false
        resume = "kept"
    """
    params = parse(text, "-n", "4").params
    assert (params["script"], params["args"], params["workers"]) == ("train.py", ("--epochs", "10"), 4)
    assert (params["devices"], params["host_names"]) == ((), "n1,n2")
    assert (params["checkpoint_every"], str(params["resume"])) == (60.0, "kept")
    assert (params["fail_fast"], params["allow_failures"]) == (True, False)
    assert os.environ["PLATOON_TIMEOUTS"] == "heartbeat=0.5,silence=2,host=3"


@pytest.mark.parametrize(
    ("text", "words", "workers", "devices"),
    [
        ('devices = ["cpu", "cpu", "cpu"]', ["-n", "2"], 2, ()),
        ('devices = ["cuda1"]', ["-n", "2"], 2, ()),
        ('devices = "cpu"', ["-n", "2"], 2, ("cpu",)),
        ('devices = "cpu"\nworkers = 3', ["-n", "2"], 2, ("cpu",)),
        ("workers = 4", ["-D", "cuda0", "-D", "cuda1"], None, ("cuda0", "cuda1")),
        ("workers = 4", ["-D", "cuda1"], None, ("cuda1",)),
        ("workers = 4", ["-D", "cpu"], 4, ("cpu",)),
        ('devices = ["cuda0"]\nworkers = 2', [], 2, ("cuda0",)),
    ],
)
def test_what_the_command_line_says_of_workers_leaves_out_what_the_file_says_otherwise(
    parse, text, words, workers, devices
):
    context = parse(f'script = "a.py"\n{text}', *words)
    assert (context.params["workers"], context.params["devices"]) == (workers, devices)
    again = command.make_context("launch", [*given_options(context, {"config"}), "a.py"])
    assert (again.params["workers"], again.params["devices"]) == (workers, devices)


def test_a_table_of_arguments_becomes_options_of_the_script(parse):
    context = parse('script = "a.py"\n[args]\nmodel = "resnet"\nrate = 0.1\nfast = true\nslow = false\nsizes = [1, 2]')
    assert context.params["args"] == ("--model", "resnet", "--rate", "0.1", "--fast", "--sizes", "1", "2")


def test_launchers_of_other_hosts_get_the_options_of_the_file(parse):
    context = parse('script = "a.py"\nworkers = 2\nfail-fast = true\nallow-failures = false', "--seed", "3")
    words = given_options(context, {"config"})
    assert " ".join(words).replace(" --", "\n--").splitlines() == ["--workers 2", "--seed 3", "--fail-fast"]


def test_the_rule_holds_where_the_script_names_none(parse):
    parse('script = "a.py"\nrule = "EASGD(alpha=0.25)"\nevery-n-batches = 3')
    assert (default_rule(), default_period()) == (EASGD(alpha=0.25), 3)


def test_the_environment_wins_over_the_rule_of_the_file_and_the_command_line_over_both(parse, monkeypatch):
    monkeypatch.setitem(os.environ, "PLATOON_RULE", "ASGD")
    text = 'script = "a.py"\nrule = "EASGD"\nevery-n-batches = 2'
    parse(text)
    assert (os.environ["PLATOON_RULE"], default_period()) == ("ASGD", 2)
    parse(text, "--rule", "LocalSGD()", "--every-n-batches", "5")
    assert (default_rule(), default_period()) == (LocalSGD(), 5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("\nworker = 2", "run.toml, line 2: there is no key worker. Did you mean workers or tracker?"),
        ("rule = 'BSP'", "run.toml, line 1: got rule = 'BSP': got rule='BSP': there is no rule BSP; choose one of A"),
        (
            "rule = 'EASGD(alpha=7)'",
            "run.toml, line 1: got rule = 'EASGD(alpha=7)': rule='EASGD(alpha=7)': got alpha=7: ",
        ),
        ("rule = 3", "run.toml, line 1: got rule = 3: got rule='3': write a rule"),
        ("every-n-batches = 0", "run.toml, line 1: got every-n-batches = 0: 0 is not in the range x>=1."),
        (
            "script = 'a.py'\n[training]\nrule = 'BSP'",
            'run.toml, line 2: there is no key training; write rule = "EASGD(alpha=0.25)" and every-n-batches = 4,',
        ),
        (
            "sync_start = true",
            "run.toml, line 1: there is no key sync_start; leave it out: workers may join at any time",
        ),
        (
            "[model]\nx = 1",
            "run.toml, line 1: there is no key model; it is an option of your script: put it below [args]",
        ),
        ("workers = true", "run.toml, line 1: got workers = true: it must be a string or a number"),
        ("fail-fast = 1", "run.toml, line 1: got fail-fast = 1: it must be true or false"),
        ("workers = 2.5", "run.toml, line 1: got workers = 2.5: '2.5' is not a valid integer."),
        ("n = 2", "run.toml, line 1: there is no key n; write workers = N"),
        ("host_timeout = 3", "run.toml, line 1: there is no key host_timeout. Did you mean host-timeout"),
        ("host-timeout = 'x'", "run.toml, line 1: got host-timeout = 'x': 'x' is not a valid float."),
        ("args = 'x'", "run.toml, line 1: got args = 'x': write args = ["),
        (
            "[args]\nrate = 1\nadam = {beta = 1}",
            "run.toml, line 3: got adam = {'beta': 1}, which cannot be written on a command line",
        ),
        ("[args.adam]\nbeta = 1", "run.toml: got adam = {'beta': 1}, which cannot be written on a command line"),
        (
            "[args]\nsizes = [[1], [2]]",
            "run.toml, line 2: got sizes = [[1], [2]], which cannot be written on a command line",
        ),
        ("args = ['--a', [1]]", "run.toml, line 1: got args = ['--a', [1]], which cannot be written on a command line"),
        ("a = ", "run.toml, which is not a TOML file: Invalid value"),
    ],
)
def test_errors_name_the_line_and_what_was_meant(parse, text, complaint):
    assert refused(parse, text, "a.py").startswith(complaint)


def test_the_file_of_the_guide_is_read(parse):
    guide = Path(__file__).parents[2] / "docs" / "config.md"
    (text,) = re.findall(r"^```toml\n(.*?)^```", guide.read_text(), re.DOTALL | re.MULTILINE)
    params = parse(text).params
    assert (params["workers"], params["args"][:2]) == (4, ("--model", "resnet"))
    assert (default_rule(), default_period()) == (EASGD(alpha=0.25), 4)
