"""The code of README.md and docs: whole scripts run on two workers, the rest compiles, and quoted errors exist."""

import ast
import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from needing import marks_of, needs, needs_blocks, needs_loops, needs_theano

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- runs: (\w+) -->\n)?^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
KERAS_2 = importlib.util.find_spec("keras") is not None and importlib.metadata.version("keras").startswith("2.")
HERE = "`make test` runs this in .nox/keras3"
needs_torch = needs_loops("torch")
RESULTS = {
    "base": "w.npz", "jax": "params.npz", "keras": "digits.keras", "lasagne": "model.npz", "blocks": "model.tar",
    "torch": "model.pt",
}  # fmt: skip

TRAINED = {"torch": "Sequential of 802, AdamW, 5 epochs, async", "jax": "parameters of 42, 5 epochs, async"}


def needs_keras_3(test):
    of_3 = pytest.mark.skipif(KERAS_2, reason="the script is for Keras 3: run it in .nox/keras3 (make test)")
    return needs("keras", "keras", f"needs Keras: {HERE}, .nox/tf")(of_3(test))


def blocks(language):
    """Return the blocks in a language as triples: page and number, the framework of a whole script, and the code."""
    return [
        (f"{path.name}-{number}", match[2], match[4])
        for path in PAGES
        for number, match in enumerate(BLOCK.finditer(path.read_text()))
        if match[3] == language
    ]


def run_whole_scripts(platoon, folder, framework, shown="", instead=""):
    """Run the scripts of a framework on two workers; something that each shows may be replaced by something shorter."""
    scripts = [code for _, found, code in blocks("python") if found == framework]
    assert scripts
    for code in scripts:
        assert shown in code
        (folder / "train.py").write_text(code.replace(shown, instead) if shown else code)
        done = platoon("launch", "-n", 2, "--log-dir", "logs", "train.py").require()
        assert (folder / RESULTS[framework]).stat().st_size > 0
        assert "shared and averaged nothing" not in done.stderr
        if framework in TRAINED:  # Loops say so by themselves, in the last table.
            found = re.findall(r"^(trained|saved) +(.*?) *$", done.stdout, re.MULTILINE)
            assert found == [("trained", TRAINED[framework]), ("saved", RESULTS[framework])]


FRAMEWORKS = {
    "base": [pytest.mark.base, pytest.mark.promise],
    "lasagne": marks_of(needs_theano),
    "blocks": marks_of(needs_blocks),
    "torch": [*marks_of(needs_torch), pytest.mark.promise],
    "jax": [*marks_of(needs_loops("optax")), pytest.mark.promise],
    "keras": [*marks_of(needs_keras_3), pytest.mark.promise],  # The script of the README takes 80 s on JAX otherwise.
}


@pytest.mark.parametrize("framework", [pytest.param(name, marks=marks) for name, marks in FRAMEWORKS.items()])
def test_the_script_for_a_framework_runs_on_two_workers(platoon, tmp_path, framework):
    shorter = (", 32, 30, ", ", 32, 3, ") if framework == "keras" else ()
    run_whole_scripts(platoon, tmp_path, framework, *shorter)


@needs_keras_3
def test_the_recipes_of_the_cookbook_run_on_two_workers(platoon, tmp_path):
    page = (ROOT / "docs" / "cookbook.md").read_text()
    code = "\n".join(match[4] for match in BLOCK.finditer(page) if match[3] == "python")
    (tmp_path / "train.py").write_text(f"{code}\nprint('to the end', len(probabilities))\n")
    done = platoon("launch", "-n", 2, "--tee", "all", "train.py").require()
    assert done.stdout.count("to the end 400") == 2
    assert (tmp_path / "best.keras").stat().st_size > 0


@pytest.fixture
def ten_minutes(monkeypatch):
    """The scripts of docs/ten_minutes.md by their names, with less data."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from first_hour import scripts

    found = scripts((ROOT / "docs" / "ten_minutes.md").read_text())
    return {name: code.replace("6400", "1280") for name, code in found.items()}


@pytest.mark.base
@pytest.mark.promise
def test_the_scripts_of_other_tools_can_be_made_of_ours(ten_minutes):
    others = {"one process", "torchrun", "accelerate", "lightning", "horovod"}
    assert set(ten_minutes) == others | {"task.py", "train.py", "horovod, here"}
    for name, code in ten_minutes.items():
        compile(code, name, "exec")


TEN_MINUTES = {
    "train.py": "platoon_base launch -n 2",
    "torchrun": "torch.distributed.run --nproc-per-node 2",
    "accelerate": "accelerate.commands.launch --multi_gpu --num_processes 2",
}
NEEDED = "needs {}: `make test` installs it in .nox/keras3"


@needs_torch
@pytest.mark.parametrize("name", TEN_MINUTES)
def test_the_same_loop_here_and_with_other_tools(run_command, ten_minutes, tmp_path, name):
    module, *words = TEN_MINUTES[name].split()
    if not importlib.util.find_spec(module.partition(".")[0]):
        pytest.skip(NEEDED.format("accelerate"))
    (tmp_path / "task.py").write_text(ten_minutes["task.py"])
    (tmp_path / "train.py").write_text(ten_minutes[name])
    environment = {"ACCELERATE_USE_CPU": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = run_command(sys.executable, "-m", module, *words, "train.py", environment=environment).require()
    (accuracy,) = re.findall(r"epoch 2: accuracy ([\d.]+)", done.stdout)
    assert float(accuracy) > 0.6
    assert (tmp_path / "model.pt").stat().st_size > 30_000


@needs_torch
def test_the_same_model_with_lightning(run_command, ten_minutes, tmp_path):
    if not importlib.util.find_spec("lightning"):
        pytest.skip(NEEDED.format("lightning"))
    (tmp_path / "task.py").write_text(ten_minutes["task.py"])
    read = "\nprint('in the end', float(trainer.callback_metrics['accuracy']))\n"
    (tmp_path / "train.py").write_text(ten_minutes["lightning"] + read)
    done = run_command(sys.executable, "train.py", environment={"CUDA_VISIBLE_DEVICES": ""}).require()
    accuracies = re.findall(r"in the end ([\d.]+)", done.stdout)
    assert len(accuracies) == 2
    assert all(float(accuracy) > 0.6 for accuracy in accuracies)
    assert (tmp_path / "model.ckpt").stat().st_size > 30_000


@needs_keras_3
def test_the_script_for_horovod_runs_here_on_two_workers(platoon, tmp_path, ten_minutes):
    (tmp_path / "train.py").write_text(ten_minutes["horovod, here"])
    platoon("launch", "-n", 2, "train.py").require()
    assert (tmp_path / "model.keras").stat().st_size > 0


@pytest.mark.base
@pytest.mark.promise
def test_every_whole_script_is_run():
    assert {framework for _, framework, _ in blocks("python") if framework} == set(RESULTS)


CODES = pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, _, code in blocks("python")])


def parsed(code):
    """Return the tree of a block, which may begin with the inside of a loop, and go on behind "..." a level deeper."""
    lines = code.splitlines()
    for text in (code, "if True:\n" + "\n".join(f"    {line}" for line in lines), _without_deeper_ends(lines)):
        try:
            return ast.parse(text)
        except SyntaxError as exc:
            error = exc
    pytest.fail(f"{error}:\n{code}")


@pytest.mark.base
@CODES
def test_blocks_of_python_compile(code):
    assert parsed(code).body


@pytest.mark.base
@CODES
def test_what_blocks_import_of_ours_is_there(code):
    """By the sources: the frameworks that the adapters import need not be here."""
    taken = [node for node in ast.walk(parsed(code)) if isinstance(node, ast.ImportFrom) and node.level == 0]
    for node in taken:
        if node.module.partition(".")[0] in ("platoon_base", "platoon_plugins"):
            path = ROOT / node.module.replace(".", "/")
            text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
            offered = set(re.findall(r"\w+", text[text.index("__all__") :]) + re.findall(r'"(\w+)": "\w+"', text))
            modules = {found.stem for found in path.glob("*")} if path.is_dir() else set()
            assert {alias.name for alias in node.names} <= offered | modules, ast.unparse(node)


def _without_deeper_ends(lines):
    """Give what stands deeper behind a line of three dots a block of its own."""
    made = []
    for before, line in zip(["", *lines], lines):
        made += ["if True:"] if before.strip() == "..." and line.startswith(" ") else []
        made.append(line)
    return "\n".join(made)


def messages():
    """Return all texts of the library; a dot stands for each value that is put in."""
    found = []
    for folder in ("platoon_base", "platoon_plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(getattr(part, "value", ".") if isinstance(part, ast.Constant) else "."
                                         for part in node.values))  # fmt: skip
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


@pytest.mark.base
@pytest.mark.promise
def test_the_errors_of_the_tables_on_troubleshooting_are_those_of_the_code():
    text = "\n".join((ROOT / "docs" / name).read_text() for name in ("troubleshooting.md", "hosts.md"))
    tables = re.findall(r"^\| message \|.*\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = "".join(tables).splitlines()
    quoted = [match[1] for match in (re.match(r"\| `+ ?(.*?) ?`+ \| ", row) for row in rows) if match]
    assert len(quoted) == len(rows) > 40
    known = messages()
    assert [quote for quote in quoted if not any(quote in message for message in known)] == []


@pytest.mark.base
def test_commands_of_the_documents_are_there(platoon):
    lines = [line for _, _, code in blocks("sh") for line in code.splitlines()]
    named = {found for line in lines for found in re.findall(r"^(?:\w+=\S+ )*platoon ([a-z]+)", line)}
    assert {"launch", "tune", "doctor"} & named
    help_text = platoon("--help").stdout
    assert {name for name in named if not re.search(rf"^  {name}\b", help_text, re.MULTILINE)} == set()


@pytest.mark.base
def test_options_in_the_documents_are_there(platoon):
    """Those that stand before the script, in lines of a shell and between backticks."""
    found = {}
    for path in PAGES:
        quoted = re.findall(r"`(platoon [^`]+)`|^((?:\w+=\S+ )*platoon .*)$", path.read_text(), re.MULTILINE)
        for line in (first or second for first, second in quoted):
            _, command, *words = re.sub(r"^(\w+=\S+ )+", "", line).split()
            own = words[: next((i for i, word in enumerate(words) if re.fullmatch(r"--|-m?|.*\.py", word)), None)]
            found.setdefault(command, set()).update(re.findall(r"(?<!\S)--[a-z-]+", " ".join(own)))
    assert "--checkpoint-every" in found["launch"]
    for command, options in found.items():
        if options - {"--help"}:
            known = platoon(command, "--help").stdout if command.isalpha() else ""
            assert {option for option in options if option not in known} <= {"--help", "--version"}, command
