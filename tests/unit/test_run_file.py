"""The file of `platoon launch --config`: what it sets, what wins over it, and what its errors say."""

import os
import re
from pathlib import Path

import pytest

from platoon_base.cli.commands.launch import command
from platoon_base.cli.engine_options import given_options
from platoon_base.cli.run_file import training_line
from platoon_base.errors import ConfigurationError
from platoon_base.rules import EASGD, GoSGD, LocalSGD, default_period, default_rule

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
        host_timeout = 3
        fail-fast = true
        allow-failures = false
        resume = "kept"
    """
    params = parse(text, "-n", "4").params
    assert (params["script"], params["args"], params["workers"]) == ("train.py", ("--epochs", "10"), 4)
    assert (params["devices"], params["host_names"]) == ((), "n1,n2")
    assert (params["checkpoint_every"], params["host_timeout"], str(params["resume"])) == (60.0, 3.0, "kept")
    assert (params["fail_fast"], params["allow_failures"]) == (True, False)


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


@pytest.mark.parametrize(
    ("table", "rule", "period"),
    [
        ('rule = "EASGD"\nalpha = 0.25\navg_freq = 2', EASGD(alpha=0.25), 2),
        ('rule = "EASGD(alpha=0.25)"\nevery_n_batches = 3', EASGD(alpha=0.25), 3),
        ('rule = "EASGD"', EASGD(), 4),
        ('rule = "BSP"', LocalSGD(), 1),
        ('rule = "GOSGD"', GoSGD(), 1),
        ('rule = "GOSGD"\nprobability = 0.1', GoSGD(probability=0.1), 1),
        ('rule = "BSP"\nmoments = true\navg_freq = 10', LocalSGD(moments=True), 10),
    ],
)
def test_the_training_holds_where_the_script_names_no_rule(parse, table, rule, period):
    context = parse(f'script = "a.py"\n[training]\n{table}')
    assert (default_rule(), default_period()) == (rule, period)
    assert training_line(context).endswith(f"{rule!r}, every {period} batches, where the script does not say")


def test_the_environment_wins_over_the_training_of_the_file(parse, monkeypatch):
    monkeypatch.setitem(os.environ, "PLATOON_RULE", "ASGD")
    context = parse('script = "a.py"\n[training]\nrule = "EASGD"\navg_freq = 2')
    assert os.environ["PLATOON_RULE"] == "ASGD"
    assert "PLATOON_EVERY_N_BATCHES" not in os.environ
    assert "is left out, since PLATOON_RULE is set" in training_line(context)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("\nworker = 2", "run.toml, line 2: there is no key worker. Did you mean workers?"),
        ("rule = 'BSP'", "run.toml, line 1: there is no key rule; it belongs below [training], as rule and avg_freq"),
        (
            "sync_start = true",
            "run.toml, line 1: there is no key sync_start; leave it out: workers may join at any time",
        ),
        (
            "[model]\nx = 1",
            "run.toml, line 1: there is no key model; it is an option of your script: put it below [args]",
        ),
        ("workers = true", "run.toml, line 1: got workers = true: it must be a text or a number"),
        ("fail-fast = 1", "run.toml, line 1: got fail-fast = 1: it must be true or false"),
        ("workers = 2.5", "run.toml, line 1: got workers = 2.5: '2.5' is not a valid integer."),
        ("n = 2", "run.toml, line 1: there is no key n; write workers = N"),
        (
            "log-dir = 'a'\nlog_dir = 'b'",
            "run.toml, line 1: got log-dir twice, with - and with _: leave one of them out",
        ),
        ("host_timeout = 'x'", "run.toml, line 1: got host-timeout = 'x': 'x' is not a valid float."),
        ("[training]\nrule = 'EASGDD'", "run.toml, line 2: there is no rule EASGDD. Did you mean EASGD or EAMSGD?"),
        ("[training]\nrule = 'easgd'", "run.toml, line 2: there is no rule easgd. Did you mean EASGD or EAMSGD?"),
        ("[training]\nrule = 'gosgd'", "run.toml, line 2: there is no rule gosgd. Did you mean GOSGD"),
        (
            "[training]\nrule = 'EASGD'\nalhpa = 1",
            "run.toml, line 3: there is no key alhpa below [training]. Did you mean alpha?",
        ),
        ("[training]\nrule = 'EASGD'\nalpha = 7", "run.toml, line 2, rule='EASGD(alpha=7)': got alpha=7: outside"),
        ("[training]\navg_freq = 0", "run.toml, line 2: got avg_freq = 0: it counts batches, from 1"),
        ("[training]\navg_freq = 1\nevery_n_batches = 1", "run.toml, line 2: avg_freq is every_n_batches: leave one"),
        ("args = 'x'", "run.toml, line 1: got args = 'x': write args = ["),
        ("[args]\nrate = 1\nadam = {beta = 1}", "run.toml, line 3: got adam = {'beta': 1}: no word of a command line"),
        ("[args.adam]\nbeta = 1", "run.toml: got adam = {'beta': 1}: no word of a command line"),
        ("[args]\nsizes = [[1], [2]]", "run.toml, line 2: got sizes = [[1], [2]]: no word of a command line"),
        ("args = ['--a', [1]]", "run.toml, line 1: got args = ['--a', [1]]: no word of a command line"),
        ("a = ", "run.toml, which is no TOML file: Invalid value"),
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
