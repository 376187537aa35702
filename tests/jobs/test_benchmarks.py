"""Each benchmark runs in its small form, and writes its results; the figures of the README are those of one run."""

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from needing import marks_of, needs_theano

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]

# One back end is enough for a script, and half a minute.
needs_torch = pytest.mark.skipif(
    os.environ.get("KERAS_BACKEND") != "torch", reason="needs Keras on torch: `make test` runs this in .nox/keras3"
)
ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def case(script, options, file, rows=None, *, on=None):
    """Make a case: a script with its options, the file that it writes, and how many results are there.

    Without a number of rows the file need not have a list of results. Most cases with a framework take a minute of
    processor time, and are rare.
    """
    marks = {"theano": marks_of(needs_theano), "torch": [pytest.mark.keras, needs_torch]}.get(on, [])
    if on and script != "torch_ddp":
        marks = [pytest.mark.rare, *marks]
    return pytest.param(script, options.split(), file, rows, id=f"{script}-{file}-{on}", marks=marks)


CASES = [
    case("rendezvous", "--members 3 40 --rounds 2", "rendezvous.json"),
    case("failures", "--jobs 1", "failures.json"),
    case("lstm", "--devices cpu cpu --units 8 --vocabulary 20 --seconds 0.3 --repeats 2", "lstm.json", 8, on="theano"),
    case("function_call", "--quick", "function_call.json", 20, on="theano"),
    case(
        "learning",
        "--task digits --quick --framework lasagne --methods defaults averaged --slow 1 --rates 0.005 --epochs 3",
        "learning-digits-lasagne.json",
        5,
        on="theano",
    ),
    case(
        "zoo",
        "--quick --devices cpu cpu --models alexnet --rules bsp --data digits",
        "zoo-lasagne-cpu.json",
        2,
        on="theano",
    ),
    case(
        "zoo",
        "--framework torch --quick --devices cpu cpu --models vit --rules ddp",
        "zoo-torch-cpu.json",
        2,
        on="torch",
    ),
    case("keras_fit", "--measure large --megabytes 8 --ways plain EASGD", "keras-large-*.json", 2, on="torch"),
    case("strangers", "--megabytes 4 --ways keras_arrays", "strangers-torch.json", 1, on="torch"),
    case("torch_ddp", "--quick", "torch_ddp.json", 10, on="torch"),
    case("keras_fit", "--quick", "keras-*.json", 8, on="torch"),
    case("keras_fit", "--measure alone --quick", "keras-alone-*-cpu.json", 4, on="torch"),
    case(
        "learning",
        "--task digits --quick --methods defaults averaged-linear --slow 1 --jobs 2 --epochs 3",
        "learning-digits.json",
        on="torch",
    ),
]


@pytest.mark.parametrize(("script", "options", "file", "rows"), CASES)
def test_a_benchmark_runs_in_its_small_form(run_command, tmp_path, script, options, file, rows):
    command = [sys.executable, BENCHMARKS / f"{script}.py", *options, "--out", tmp_path]
    done = run_command(*command, timeout=780).require()
    assert "FAILED" not in done.stdout
    (path,) = tmp_path.glob(file)
    written = json.loads(path.read_text())
    assert {"date", "cpu", "versions"} <= set(written["machine"])
    assert rows is None or len(written["results"]) == rows


def test_steps_to_a_target_lie_between_two_validations(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from learning import first_reach

    curve = [(10, 1.0, 0.5), (20, 2.0, 0.7), (30, 3.0, 0.6), (40, 5.0, 0.9)]
    assert first_reach(curve, 0.4) == {"steps": 10, "seconds": 1.0}
    assert first_reach(curve, 0.6) == pytest.approx({"steps": 15, "seconds": 1.5})
    assert first_reach(curve, 0.95) is None
    falling = [(steps, seconds, 1 - value) for steps, seconds, value in curve]
    assert first_reach(falling, 0.4, lower=True) == pytest.approx({"steps": 15, "seconds": 1.5})


@pytest.mark.skipif(not find_spec("matplotlib"), reason="needs matplotlib: `make setup` installs it")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of matplotlib's import, which others than pytest do not see
def test_the_picture_of_the_readme_shows_the_figures_of_one_run(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import learning_picture

    results = json.loads((ROOT / "docs/benchmarks/learning-defaults-fashion-mnist.json").read_text())
    for mode in ("light", "dark"):
        learning_picture.draw(results, tmp_path / "made.svg", mode)
        made, kept = (tmp_path / "made.svg").read_text(), (ROOT / f"docs/learning-{mode}.svg").read_text()
        words = [re.findall(r">([^<>\n]*[a-z][^<>\n]*)</text>", text) for text in (made, kept)]
        assert words[0] == words[1]
        assert len([word for word in words[1] if "process:" in word or "workers:" in word]) == 3
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/index.md")]
    times = [re.search(r"([\d.]+) times fewer", word)[1] for word in words[1] if "times" in word]
    assert all(value in text for value in times for text in texts)
