"""Pictures as PNG, read by another library: curves where the SVG has them, texts on any machine, any name."""

import importlib.util
import io
import os
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from scripts_here import script_path

from platoon_base.cli.commands.launch import command as launch
from platoon_base.cli.commands.tune import command as tune
from platoon_base.cli.png import as_png
from platoon_base.cli.run_charts import Series, chart
from platoon_base.cli.run_recorder import Lane, Point, RunRecorder, Shares, Value
from platoon_base.cli.run_report import RunReport
from platoon_base.cli.study import Method, Trial, Watched
from platoon_base.cli.study import Point as Reported
from platoon_base.cli.svg import COLORS, LIGHT, sheet
from platoon_base.cli.tune_picture import picture
from platoon_base.errors import ConfigurationError

pytestmark = pytest.mark.base

SVG = "{http://www.w3.org/2000/svg}"
LIBRARIES = ("resvg_py", "font_source_sans_pro", "PIL")
ODD = "<a & b> \x01\x00\ufffe \udcff 損失"

needs_png = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, LIBRARIES)),
    reason="needs resvg-py, font-source-sans-pro and Pillow: pip install 'platoon-plugins[plots]' pillow",
)


def decoded(png):
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        assert image.mode == "RGBA"
        pixels = np.asarray(image)
    assert (pixels[..., 3] == 255).all()  # viewers have papers of any color
    return pixels[..., :3]


def of_color(pixels, color):
    return (pixels == list(bytes.fromhex(color[1:]))).all(axis=-1)


def drawn(svg):
    """Return the pixels, the root of the SVG, and their scale."""
    pixels, root = decoded(as_png(svg)), ElementTree.fromstring(svg)
    _, _, across, down = map(float, root.get("viewBox").split())
    scale = pixels.shape[1] / across
    assert pixels.shape[:2] == (scale * down, scale * across)
    return pixels, root, scale


def dark(pixels):
    return np.count_nonzero(pixels.sum(axis=-1, dtype=int) < 200)


def curves(*pairs):
    return [Series(name, [(0.0, value), (10.0, value)]) for name, value in pairs]


@needs_png
def test_the_curves_have_their_colors_where_the_svg_has_them():
    drawings = [chart("loss", curves(("a", 1.0), ("b", 2.0))), chart("speed", curves(("c", 3.0)), from_zero=True)]
    pixels, root, scale = drawn(sheet([*drawings, chart("third", curves(("d", 1.0)))]))
    assert of_color(pixels[0], LIGHT["paper"]).all()
    cells = root.findall(f"{SVG}svg")
    assert [len(cell.findall(f"{SVG}polyline")) for cell in cells] == [2, 1, 1]
    for cell in cells:
        left, top = float(cell.get("x")), float(cell.get("y"))
        over, above, *_ = map(float, cell.get("viewBox").split())
        for line, color in zip(cell.findall(f"{SVG}polyline"), COLORS):
            (x, y), (end, _) = (map(float, pair.split(",")) for pair in line.get("points").split())
            row, column = int((top - above + y) * scale), int((left - over + (x + end) / 2) * scale)
            assert of_color(pixels[row, column], color)
    assert of_color(pixels, LIGHT["line"]).any()


TEXTS = "import sys; from platoon_base.cli.png import as_png; sys.stdout.buffer.write(as_png(sys.stdin.read()))"
NO_FONTS = (
    "for folder in /usr/share/fonts /usr/local/share/fonts /etc/fonts; do "
    '[ ! -d $folder ] || mount -t tmpfs none $folder || exit 77; done; exec "$@"'
)


@needs_png
@pytest.mark.parametrize(
    "apart",
    [
        [],
        pytest.param(
            ["unshare", "-m", "sh", "-c", NO_FONTS, "sh"],
            marks=pytest.mark.skipif(
                os.geteuid() != 0 or not shutil.which("unshare"), reason="needs to mount, as root"
            ),
        ),
    ],
    ids=["here", "no fonts"],
)
def test_texts_are_drawn_also_on_a_machine_without_fonts(apart, tmp_path):
    svg = sheet([chart("A title", curves(("curve", 1.0)))])
    home = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    command = [*apart, sys.executable, "-c", TEXTS]
    done = subprocess.run(command, input=svg.encode(), capture_output=True, env=home, timeout=120, check=False)
    if done.returncode == 77:
        pytest.skip(f"needs to mount, as root: {done.stderr.decode()}")
    assert done.returncode == 0, done.stderr
    pixels = decoded(done.stdout)
    (cell,) = ElementTree.fromstring(svg).findall(f"{SVG}svg")
    left, top = 2 * int(cell.get("x")), 2 * int(float(cell.get("y")))
    assert dark(pixels[top : top + 48, left : left + 100]) > 50  # the title
    assert dark(pixels[-80:]) > 50  # the legend


@pytest.fixture
def recorder():
    recorder = RunRecorder()
    recorder.seconds = 20.0
    lane = recorder.lanes[0] = Lane(0, "cpu")
    lane.points = [Point(float(i), 0, 10 * i, 1 / (1 + i), Shares(compute=float(i))) for i in range(20)]
    return recorder


def values(*pairs):
    return [Value(at, at, value) for at, value in pairs]


def report_on(recorder, path):
    report = RunReport(path, "train.py", path.parent)
    report.recorder = recorder
    report.write()


@needs_png
def test_a_job_that_reported_nothing_replaces_the_pictures_of_an_earlier_one(tmp_path):
    for name in ("run_training.png", "run_validation.png"):
        (tmp_path / name).write_text("of an earlier job")
    report_on(RunRecorder(), tmp_path / "run.html")
    for name in ("run_training.png", "run_validation.png"):
        assert dark(decoded((tmp_path / name).read_bytes())) > 50


@needs_png
def test_a_picture_that_cannot_be_written_costs_itself_alone(recorder, tmp_path, capsys):
    (tmp_path / "run_training.png").mkdir()
    recorder.values = {"val_loss": values((1.0, 2.0), (9.0, 1.0))}
    report_on(recorder, tmp_path / "run.html")
    assert "platoon: the curves of training cannot be written to" in capsys.readouterr().err
    decoded((tmp_path / "run_validation.png").read_bytes())


def trials():
    curve = [Reported(10.0 * i, 5.0 * i, 1 / i) for i in range(1, 4)]
    return [Trial(Method(2, words=(ODD,)), 0, {ODD: curve})]


@needs_png
def test_any_text_and_the_picture_of_tune_become_png():
    decoded(as_png(sheet([chart(ODD, curves((ODD, 1.0)))])))
    pixels, root, scale = drawn(picture(ODD, trials(), Watched(ODD, False), [], "steps"))
    line = next(root.iter(f"{SVG}polyline"))
    column, row = (round(scale * float(each)) for each in line.get("points").split()[0].split(","))
    assert of_color(pixels[row - 4 : row + 5, column : column + 9], line.get("stroke")).any()


@pytest.fixture(params=LIBRARIES[:2])
def without_library(request, monkeypatch):
    monkeypatch.setitem(sys.modules, request.param, None)  # as where it is not installed
    return request.param


PIP = r"pip install 'platoon-plugins\[plots\]'"


@pytest.mark.parametrize(
    ("command", "words"),
    [(launch, ["--report", "run.html", "--report-png"]), (tune, ["--plot", "tune.PNG"])],
    ids=["launch", "tune"],
)
def test_a_request_without_the_library_is_refused_before_the_job(without_library, command, words, tmp_path):
    script = script_path("run_report_phases")
    with pytest.raises(ConfigurationError, match=f"got .*{words[-1]}.*{without_library}.* not installed here.*{PIP}"):
        CliRunner().invoke(command, [*words, str(script)], catch_exceptions=False)
