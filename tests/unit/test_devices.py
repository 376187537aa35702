"""Which devices the workers get, what comes with them, and the warnings if they are not used."""

import os
import shutil
import subprocess
import warnings

import numpy as np
import pytest
from scripts_here import script_path

from platoon_base import compat
from platoon_base.cli.commands.doctor import checks
from platoon_base.cli.launcher import choose_center, worker_environment
from platoon_base.devices import warn_if_not_on_device
from platoon_base.devices.discovery import CPU_DEFAULT, can_share_center, choose_devices, cuda_devices, require_devices
from platoon_base.devices.isolation import brought_to_front
from platoon_base.errors import ConfigurationError, PlatoonWarning
from platoon_base.system import warn

base = pytest.mark.base
theano = pytest.mark.theano

# The test run's compile directory, without its floatX.
FLAGS = ",".join(flag for flag in os.environ.get("THEANO_FLAGS", "").split(",") if flag and "floatX" not in flag)

# A CUDA driver without devices: FAKE_DEVICES of them, fewer if CUDA_VISIBLE_DEVICES names fewer; FAKE_PAIRS: only 0 and
# 1, 2 and 3 ... reach each other; FAKE_ERROR: what cuInit returns.
DRIVER = r"""
#include <stdlib.h>
#include <string.h>
static int number(const char *name) { return getenv(name) ? atoi(getenv(name)) : 0; }
int cuInit(unsigned flags) { return number("FAKE_ERROR"); }
int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = number("FAKE_DEVICES");
    if (visible)
        for (*count = *visible != 0; *visible; visible++) *count += *visible == ',';
    return 0;
}
int cuDeviceGet(int *device, int i) { *device = 10 + i; return 0; }
int cuDeviceCanAccessPeer(int *can, int a, int b) {
    if (a == b) return 101;
    *can = !number("FAKE_PAIRS") || (a - 10) / 2 == (b - 10) / 2;
    return 0;
}
int cuGetErrorName(int error, const char **name) {
    *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_SYSTEM_NOT_READY";
    return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Compile the driver; returns its folder."""
    if shutil.which("gcc") is None:
        pytest.skip("the stand-in for the CUDA driver needs gcc")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "cuda.c").write_text(DRIVER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "cuda.c"], check=True)
    return folder


@pytest.fixture
def gpus(driver, monkeypatch):
    """Set how many CUDA devices there seem to be, to this process and those it starts."""

    def set_gpus(number, **more):
        monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in {"FAKE_DEVICES": number, **more}.items():
            monkeypatch.setenv(name, str(value))

    return set_gpus


@pytest.fixture
def no_driver(tmp_path, monkeypatch):
    folder = tmp_path / "nothing"
    folder.mkdir()
    (folder / "libcuda.so.1").touch()  # not a library: hides one that may be here
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))


@base
@pytest.mark.parametrize(
    ("workers", "words", "devices", "reason"),
    [
        (None, [], ["cuda0", "cuda1", "cuda2"], "all there are"),
        (None, ["auto"], ["cuda0", "cuda1", "cuda2"], "all there are"),
        (None, ["cuda"], ["cuda0", "cuda1", "cuda2"], "all there are"),
        (2, [], ["cuda0", "cuda1"], "the first 2 of 3; -D cpu for the CPU"),
        (2, ["cuda"], ["cuda0", "cuda1"], "the first 2 of 3; -D cpu for the CPU"),
        (None, ["cpu"], ["cpu"], ""),
        (5, ["cpu"], ["cpu"] * 5, ""),
        (None, ["cuda2", "cuda2", "cpu"], ["cuda2", "cuda2", "cpu"], ""),
        (2, ["cuda2", "cuda0"], ["cuda2", "cuda0"], ""),
    ],
)
def test_with_gpus_they_are_taken(gpus, workers, words, devices, reason):
    gpus(3)
    assert choose_devices(workers, words) == (devices, reason)


@base
def test_without_a_gpu_the_cpu_is_taken_and_that_is_said(no_driver, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    devices, reason = choose_devices(None, [])
    assert devices == ["cpu"] * CPU_DEFAULT
    assert reason == "there is no CUDA device here, nor a driver; one worker for each core, at most 4, without -n"
    assert choose_devices(7, ["auto"]) == (["cpu"] * 7, "there is no CUDA device here, nor a driver")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert choose_devices(None, ["auto"]).devices == ["cpu"]


@base
@pytest.mark.parametrize(
    ("workers", "words", "complaint"),
    [
        (4, [], "got -n 4, but there are 3 CUDA devices: pass -n 3; or -D cpu -n 4 for the CPU; or name the devices"),
        (4, ["cuda"], "share one, such as -D cuda0 cuda1 cuda2 cuda0"),
        (0, [], "at least 1 worker"),
        (3, ["cuda0", "cuda1"], "both -n 3 and -D with 2 devices"),
        (None, ["cuda", "cpu"], "'cuda' means all of them, and must be the only word"),
    ],
)
def test_more_than_there_is_is_refused(gpus, workers, words, complaint):
    gpus(3)
    with pytest.raises(ConfigurationError, match=complaint):
        choose_devices(workers, words)


@base
def test_cuda_visible_devices_is_respected(gpus, monkeypatch):
    gpus(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert choose_devices(None, []).devices == ["cuda0", "cuda1"]
    with pytest.raises(ConfigurationError, match="cuda2 does not exist here: there are cpu, cuda0, cuda1"):
        require_devices(["cuda0", "cuda2"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "with CUDA_VISIBLE_DEVICES=''" in choose_devices(None, []).reason
    with pytest.raises(ConfigurationError, match="got -D cuda, but there is no CUDA device here"):
        choose_devices(None, ["cuda"])


@base
def test_a_driver_that_does_not_work_is_told_from_none(gpus):
    gpus(2, FAKE_ERROR=802)
    assert cuda_devices().broken
    assert choose_devices(2, []).reason == "CUDA does not work here: CUDA_ERROR_SYSTEM_NOT_READY"
    gpus(0, FAKE_ERROR=100)
    assert not cuda_devices().broken
    assert choose_devices(2, []).reason == "there is no CUDA device here"


@base
@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        (["cuda0", "cuda1"], ""),
        (["cuda3"], ""),
        (["cuda3", "cuda2"], ""),
        (["cuda0", "cuda2"], "cuda0 and cuda2 cannot access each other's memory"),
        (["cuda0", "cuda0"], ""),
        (["cuda0", "cuda1", "cuda0"], ""),
        (["cuda0", "cuda2", "cuda2"], "cuda0 and cuda2 cannot access each other's memory"),
        (["cuda0", "cpu"], "cpu is not a CUDA device"),
        (["opencl0:0"], "opencl0:0 is not a CUDA device"),
        (["cuda4"], "there is no cuda4"),
        ([], "there is no CUDA device"),
    ],
)
def test_a_center_is_shared_by_devices_that_reach_each_other(gpus, devices, reason):
    gpus(4, FAKE_PAIRS=1)
    assert can_share_center(devices) == reason
    assert choose_center("auto", devices) == ("host" if reason else "device")
    assert choose_center("host", devices) == "host"
    if reason:
        with pytest.raises(ConfigurationError, match=f"cannot be in GPU memory: {reason}"):
            choose_center("device", devices)
    else:
        assert choose_center("device", devices) == "device"


@base
def test_doctor_tells_where_the_center_can_be(gpus, no_driver, monkeypatch):
    def line():
        return next(check for check in checks() if check.name == "center in GPU memory")

    monkeypatch.setattr("platoon_base.cli.commands.doctor.framework_checks", lambda: iter(()))
    monkeypatch.setattr("platoon_base.cli.commands.doctor.list_devices", lambda: [])
    assert line()[1:3] == (False, "no, because there is no CUDA device here, nor a driver")
    gpus(4, FAKE_PAIRS=1)
    assert line()[1:3] == (False, "no, because cuda0 and cuda2 cannot access each other's memory")
    gpus(2)
    assert line()[1:3] == (True, "yes, shared by cuda0 cuda1")


SHOW = script_path("devices_show")


@base
def test_each_gpu_worker_gets_its_device_and_what_it_needs(platoon, gpus, tmp_path, monkeypatch):
    gpus(3)
    monkeypatch.setenv("THEANO_FLAGS", "blas.ldflags=")
    monkeypatch.setenv("HOME", str(tmp_path))
    done = platoon("launch", "--log-dir", "logs", SHOW)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(
        "3 workers on cuda0 cuda1 cuda2 (all there are), center in GPU memory unless a warning follows, logs in logs\n"
    )
    cache = tmp_path / ".cache" / "platoon" / "gpuarray"
    assert cache.is_dir()
    for rank in range(3):
        assert (tmp_path / "logs" / f"rank{rank}.log").read_text().split("\n")[0] == (
            f"cuda{rank} THEANO_FLAGS:blas.ldflags=,device=cuda{rank},dnn.enabled=False,floatX=float32 "
            f"center:device GPUARRAY_CACHE_PATH:{cache}"
        )
    done = platoon("launch", "-n", 2, "--center", "host", "--log-dir", "two", SHOW)
    assert done.stdout.startswith("2 workers on cuda0 cuda1 (the first 2 of 3; -D cpu for the CPU), logs in two\n")
    assert "center:host" in (tmp_path / "two" / "rank1.log").read_text()
    done = platoon("launch", "-D", "cuda0", "cpu", "--center", "device", SHOW)
    assert done.returncode == 2
    assert "the center cannot be in GPU memory: cpu is not a CUDA device" in done.stderr


@base
def test_what_the_user_has_chosen_stays(tmp_path):
    def flags(device, **environment):
        return worker_environment(device, 1, {"THEANORC": str(tmp_path / "rc"), **environment})["THEANO_FLAGS"]

    assert flags("cpu") == "device=cpu"
    assert flags("cuda1") == "device=cuda1,dnn.enabled=False,floatX=float32"
    assert flags("cuda1", THEANO_FLAGS="floatX=float64, dnn.enabled=auto") == (
        "floatX=float64, dnn.enabled=auto,device=cuda1"
    )
    (tmp_path / "rc").write_text("[global]\nfloatX = float64\n[dnn]\nenabled = %(odd)s\n")
    assert flags("cuda1") == "device=cuda1"
    (tmp_path / "rc").write_text("not a configuration")
    assert flags("cuda1") == "device=cuda1,dnn.enabled=False,floatX=float32"
    assert worker_environment("cuda0", 1, {"GPUARRAY_CACHE_PATH": "x"})["GPUARRAY_CACHE_PATH"] == "x"


THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@base
@pytest.mark.parametrize("chosen", [*THREADS, "GOTO_NUM_THREADS", "BLIS_NUM_THREADS"])
def test_a_number_of_threads_that_the_user_has_set_is_left_alone_and_is_the_only_one(chosen):
    """PyTorch reads MKL's before OpenMP's, OpenBLAS its own before that."""
    environment = worker_environment("cpu", 2, {chosen: "3"})
    assert {name: value for name, value in environment.items() if name.endswith("_THREADS")} == {chosen: "3"}


@base
def test_threads_are_limited_for_several_workers_alone():
    cores = len(os.sched_getaffinity(0))
    several = worker_environment("cpu", 2, {})
    assert [several[name] for name in THREADS] == [str(max(1, cores // 2))] * 3
    assert not [name for name in worker_environment("cpu", 1, {}) if name.endswith("_THREADS")]


@pytest.fixture
def afresh(monkeypatch):
    monkeypatch.setattr(warn, "said", set())


@base
def test_arrays_of_a_worker_with_a_gpu_are_on_the_host(afresh):
    text = "given cuda0, but all its parameters are in the memory of the host.*REALLY COMPUTES ON THE CPU"
    with pytest.warns(PlatoonWarning, match=text):
        warn_if_not_on_device("cuda0", [np.zeros(2, "float32")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_not_on_device("cuda0", [np.zeros(2, "float32")])  # said already
        warn_if_not_on_device("cpu", [np.zeros(2)])
        warn_if_not_on_device("cuda1", [])
        warn_if_not_on_device("cuda1", [object()])


@pytest.fixture(scope="module")
def theano_module():
    compat.apply()
    return pytest.importorskip("theano", reason="needs Theano: `make setup` installs it on Python 3.11")


ON_DEVICE = """
    import numpy as np
    import theano
    from platoon_base import connect
    from platoon_base.devices import warn_if_not_on_device

    with connect() as worker:
        w = theano.shared(np.zeros(3, theano.config.floatX), "w")
        print(theano.config.floatX, type(w).__name__, flush=True)
        warn_if_not_on_device(worker.device, [w])
        {more}
"""


@theano
def test_on_the_device_with_float32_there_is_no_warning(platoon, write_script, theano_module, opencl, tmp_path):
    script = write_script(ON_DEVICE.format(more=""))
    done = platoon("launch", "-D", "opencl0:0", "--log-dir", "logs", script, environment={"THEANO_FLAGS": FLAGS})
    log = (tmp_path / "logs" / "rank0.log").read_text()
    assert done.returncode == 0, done.stdout
    assert "float32 GpuArraySharedVariable" in log
    assert "WARNING" not in done.stdout + log


@theano
def test_float64_and_parameters_left_on_the_host_are_reported(platoon, write_script, theano_module, opencl, tmp_path):
    more = "v = theano.shared(w.get_value(), 'v', target='cpu'); warn_if_not_on_device(worker.device, [w, v])"
    done = platoon(
        "launch", "-D", "opencl0:0", "--log-dir", "logs", write_script(ON_DEVICE.format(more=more)),
        environment={"THEANO_FLAGS": f"{FLAGS},floatX=float64"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "WARNING, worker 0: theano.config.floatX is float64 on opencl0:0" in done.stdout
    assert "WARNING, worker 0: w: float64 on opencl0:0" in done.stdout
    assert "these parameters are in host memory and are copied at every step: v." in done.stdout
    log = (tmp_path / "logs" / "rank0.log").read_text()
    assert log.count("WARNING platoon_base.system.warn: theano.config.floatX is float64") == 1


@theano
def test_a_device_that_theano_cannot_use_is_reported_on_the_terminal(platoon, write_script, theano_module, gpus):
    """Theano by itself logs an error and goes on, on the CPU."""
    gpus(1)
    script = write_script(ON_DEVICE.format(more=""))
    done = platoon(
        "launch", "-D", "cuda0", script, environment={"THEANO_FLAGS": FLAGS, "CUDA_VISIBLE_DEVICES": "none,"}
    )
    assert done.returncode == 0, done.stdout
    assert "WARNING, worker 0: Theano could not use cuda0 and REALLY COMPUTES ON THE CPU" in done.stdout
    assert "WARNING, worker 0: this worker was given cuda0, but all its parameters are in the memory" in done.stdout


@pytest.mark.parametrize(
    ("number", "visible", "expected"),
    [
        (1, "2,3,5", "3,2,5"),
        (2, "GPU-a,GPU-b,GPU-c", "GPU-c,GPU-a,GPU-b"),
        (0, "4", "4"),
        (1, "1", None),  # a script has chosen one since, before it imported JAX
        (1, "", None),  # or none
    ],
)
def test_a_worker_s_device_becomes_the_first_of_its_process(number, visible, expected):
    assert brought_to_front(number, visible) == expected
    assert brought_to_front(1, None).startswith("1,0,2,3,4")
