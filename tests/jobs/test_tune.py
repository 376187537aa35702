"""`platoon tune`: the user's script by several methods, in real jobs."""

import json
import os
import re
from pathlib import Path

import pytest
from needing import marks_of, needs, needs_blocks, needs_theano
from scripts_here import script_path

from platoon_base.job.starting import THREAD_VARIABLES

EXAMPLES = Path(__file__).parents[2] / "examples"
needs_keras = needs("keras", "keras", "needs Keras: `make test` runs this in .venv, .nox/keras3, .nox/tf")

# Gradient descent on 1/2 |x|^2 from |x| = 1: the loss after k steps is (1 - rate)^(2 k) / 2 for every method, as all
# workers take the same steps.
DESCENT = script_path("tune_descent").read_text()


def run(platoon, *words, **kwargs):
    return platoon("tune", "-n", 2, "--steps", 50, "--no-halving", "--summary", "tune.json", *words, **kwargs)


@pytest.mark.base
def test_the_methods_run_and_the_values_at_the_budget_are_compared(platoon, write_script, tmp_path):
    script = write_script(f"import os\nprint('threads', os.environ['OMP_NUM_THREADS'])\n{DESCENT}")
    unset = dict.fromkeys(THREAD_VARIABLES, "")
    methods = ("--method", "EASGD(alpha=0.5) every 5", "--method", "every 10", "--also=--flag 'a b'")
    done = run(platoon, "--seeds", 2, *methods, script, "own", "--seeds", "7", environment=unset).require()
    found = json.loads((tmp_path / "tune.json").read_text())
    names = ["plain, one worker", "EASGD(alpha=0.5) every 5", "CenterMomentum() every 10", "the script with --flag a b"]
    assert [each["method"] for each in found["methods"]] == names
    assert (found["watched"], found["better"], found["budget"]) == ("val_loss", "lower", {"steps": 50})
    plain = found["methods"][0]
    # Between the reports after 40 and 60 steps, by hand.
    assert plain["value"] == pytest.approx((0.99**80 + 0.99**120) / 4)
    assert plain["steps"] == 50
    assert all(len(each["values"]) == 2 and not each["failed"] for each in found["methods"])
    told = {run["method"]: run["rule"] for run in found["runs"]}
    assert "alpha=0.5" in told["EASGD(alpha=0.5) every 5"]
    assert "CenterMomentum" in told["CenterMomentum() every 10"]
    logs = [path.read_text() for path in sorted(tmp_path.glob("platoon_logs/script-tune/*/run*/rank0.log"))]
    assert len(logs) == 8
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert all(f"threads {threads}\n" in log for log in logs)  # of plain training too
    assert f"used threads for {threads} of " in done.stdout
    endings = sorted(re.findall("ended .*", "".join(logs)))[::2]
    own = "'own', '--seeds', '7'"
    assert endings == [
        f"ended CenterMomentum() [{own}]",
        f"ended EASGD(alpha=0.5) [{own}]",
        f"ended None [{own}, '--flag', 'a b']",
        f"ended None [{own}]",
    ]
    assert "val_loss: lower is better" in done.stdout
    assert re.search(r"^Recommended: ", done.stdout, re.MULTILINE)


@pytest.mark.base
@pytest.mark.slow
@pytest.mark.rare
def test_the_built_in_methods_run_within_minutes_of_training_too(platoon, write_script, tmp_path):
    words = ("--minutes", 0.05, "--seeds", 1, "--all", "--no-halving", "--summary", "tune.json")
    platoon("tune", "-n", 2, *words, write_script(DESCENT)).require()
    found = json.loads((tmp_path / "tune.json").read_text())
    assert found["budget"] == {"seconds": 3.0}
    assert len(found["methods"]) == 10
    assert all(each["seconds"] <= 3.0 for each in found["methods"])


@pytest.mark.base
def test_a_script_that_names_rule_and_period_wins_and_is_told(platoon, write_script):
    script = write_script(
        DESCENT.replace("init_shared_params([x])", "init_shared_params([x], EASGD(0.25))")
        .replace("import default_period", "import EASGD")
        .replace("default_period()", "8")
    )
    methods = ("--method", "EASGD(alpha=0.25) every 4", "--method", "EASGD(alpha=0.25) every 30", "--method", "EASGD")
    methods += ("--method", "ASGD")
    done = run(platoon, "--seeds", 1, *methods, script).require()
    assert "the script sets its rule, EASGD(alpha=0.25), so other rules have no effect" in done.stdout
    assert "ASGD() every 10" not in done.stdout  # which would train by EASGD too
    assert "the script sets its period, so other periods have no effect" in done.stdout


@pytest.mark.base
@pytest.mark.parametrize(
    ("script", "words", "complaint"),
    [
        (DESCENT.replace("worker.report(", "dict("), [], 'connect().report({"val_loss": loss})'),
        (DESCENT.replace("worker.progress(steps=1", "dict(steps=1"), ["--limit", 3], "connect().progress(steps=1)"),
        (
            DESCENT.replace("% 20", "% 200"),
            [],
            "val_loss was reported first after 200 steps, and the budget is 50 steps",
        ),
        (DESCENT, ["--watch", "f1"], "--watch f1, but the script reports val_loss: name one of these"),
        ("raise RuntimeError('the reason')", [], "RuntimeError: the reason"),
        (DESCENT, ["--method", "SGD"], "there is no rule SGD; choose one of"),
        (DESCENT, ["-n", 1], "got one worker"),
        (DESCENT, ["--plot", "tune.png"], "got --plot tune.png: the chart is written as SVG; name a file"),
        (DESCENT, ["--all", "--method", "EASGD"], "got --all and --method"),
    ],
)
def test_errors_say_what_to_do(platoon, write_script, script, words, complaint):
    done = run(platoon, *words, write_script(script)).require(2)
    assert complaint in done.stderr


@pytest.mark.base
@pytest.mark.promise
def test_a_rule_that_depends_on_the_period_is_none_that_the_script_names(platoon, write_script, tmp_path):
    """Adapters give rules their period, which `Worker.init_shared_params` does not know."""
    given = "init_shared_params([x], at_period(default_rule(), default_period()))"
    script = DESCENT.replace("init_shared_params([x])", given).replace(
        "import default", "import at_period, default_rule, default"
    )
    done = run(
        platoon, "--seeds", 1, "--method", "every 4", "--method", "EASGD(alpha=0.5)", write_script(script)
    ).require()
    assert "the script names" not in done.stdout
    assert len(json.loads((tmp_path / "tune.json").read_text())["methods"]) == 3


@pytest.mark.base
def test_a_method_that_fails_is_told_and_the_others_go_on(platoon, write_script, tmp_path):
    failing = "if 'EASGD' in os.environ.get('PLATOON_RULE', ''):\n    raise RuntimeError('the reason')\nx = np"
    script = write_script(DESCENT.replace("x = np", failing, 1))
    done = run(platoon, "--seeds", 1, "--method", "EASGD", "--method", "ASGD", script).require(1)
    assert "RuntimeError: the reason" in done.stdout
    plain, easgd, asgd = json.loads((tmp_path / "tune.json").read_text())["methods"]
    assert easgd["values"] == []
    assert len(easgd["failed"]) == len(plain["values"]) == len(asgd["values"]) == 1


@pytest.mark.base
def test_a_script_that_does_not_listen_is_ended(platoon, write_script, tmp_path):
    deaf = DESCENT.replace("if worker.agree_to_stop():", "if False:").replace("range(1, 10_001)", "range(1, 10**9)")
    run(platoon, "--seeds", 1, "--limit", 15, "--method", "EASGD", write_script(deaf)).require()
    assert [len(each["values"]) for each in json.loads((tmp_path / "tune.json").read_text())["methods"]] == [1, 1]


def compare(platoon, tmp_path, script, *words):
    methods = ("--method", "every 4", "--method", "EASGD(alpha=0.5) every 20")
    run(platoon, "--seeds", 1, "--steps", 70, *methods, EXAMPLES / script, *words).require()
    found = json.loads((tmp_path / "tune.json").read_text())
    assert [len(each["values"]) for each in found["methods"]] == [1, 1, 1]
    _, momentum, easgd = found["runs"]
    assert f"CenterMomentum(alpha=0.45, momentum={0.9**0.4}" in momentum["rule"]
    assert "EASGD(alpha=0.5)" in easgd["rule"]
    # At the ends of epochs of 17 steps too, whatever the period.
    assert momentum["syncs"] / momentum["steps"] > 1.5 * easgd["syncs"] / easgd["steps"]
    return found


EXAMPLES_OF = [
    pytest.param("keras_digits.py", [], "val_loss", marks=marks_of(needs_keras)),
    pytest.param("lasagne_digits.py", ["--plot", ""], "valid_error", marks=[pytest.mark.rare, *marks_of(needs_theano)]),
    pytest.param("blocks_digits.py", [], "valid_cost", marks=marks_of(needs_blocks)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "words", "watched"), EXAMPLES_OF)
def test_an_example_is_tuned(platoon, tmp_path, script, words, watched):
    found = compare(platoon, tmp_path, script, *words)
    assert found["watched"] == watched
    assert [point[0] for point in found["runs"][0]["points"][:2]] == [34, 68]
