"""The folders and names of jobs: what a live job has is left alone, what a dead one left is found."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from programs import run_python
from scripts_here import script_path

from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.job import files as job_files
from platoon_base.job.files import JobFiles, Origin
from platoon_base.job.observing import kill
from platoon_base.shm.segments import SHM_FOLDER, HiddenName, Segment
from platoon_base.system import job_paths
from platoon_base.system.environment import NAMESPACE
from platoon_base.system.own_files import open_log, write_where_named, write_whole

pytestmark = pytest.mark.base

CREATE_AND_WAIT = script_path("job_files_create_and_wait")


@pytest.fixture(autouse=True)
def tmpdir_of_jobs(tmp_path, monkeypatch):  # pytest makes its own folder first, where it is to stay
    """Another folder for temporary files, with a path short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="p") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        monkeypatch.undo()


@pytest.fixture
def jobs_folder(tmpdir_of_jobs):
    """Where the jobs' folders are in this test; the names of shared memory are as ever."""
    return tmpdir_of_jobs / job_files.segment_prefix().strip("/-")


@pytest.fixture
def files():
    made = JobFiles(size=3).create()
    yield made
    made.remove()


@pytest.fixture
def live_job(files):
    """A job whose shared memory is open in this process."""
    with Segment.create(files.job_state, 4096), Segment.create(files.center, 4096):
        yield files


@pytest.fixture
def dead_job(tmpdir_of_jobs):
    """A job whose only process was killed."""
    environment = {**os.environ, "TMPDIR": str(tmpdir_of_jobs)}
    with subprocess.Popen(
        [sys.executable, CREATE_AND_WAIT],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        folder = process.stdout.readline().strip()
        process.kill()
    assert process.returncode == -signal.SIGKILL
    files = JobFiles.read(folder)
    yield files
    files.remove()


def traces(files):
    """All that a job has on this host."""
    return {Path(files.folder), *(SHM_FOLDER / str(name).lstrip("/") for name in (files.job_state, files.center))}


def make_old(*paths):
    """Let paths look untouched for a minute: what is young may be a job that is just starting."""
    for path in paths:
        before = path.stat().st_mtime - 60
        os.utime(path, (before, before))


def found(files):
    return {left.path for left in job_files.leftovers() if files.job in left.path.name}


def test_a_new_job_has_a_folder_for_its_user_alone(files, jobs_folder):
    folder = Path(files.folder)
    assert folder.parent == jobs_folder
    assert folder.name == files.job
    for private in (folder, jobs_folder):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_names_belong_to_the_job(files):
    assert files.size == 3
    assert files.address == f"ipc://{files.folder}/control"
    names = [files.job_state, *map(str, (files.center, files.collective, files.data("x")))]
    assert len(set(names)) == len(names)
    assert all(name.startswith(f"{job_files.segment_prefix()}{files.job}-") for name in names)


def test_a_description_is_read_back(files):
    assert JobFiles.read(files.folder) == files


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b'{"job": "x"}', b'{"job": 1, "folder": "", "size": 2}'])
def test_a_folder_without_a_job_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "job.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match="not the folder of a running job"):
        JobFiles.read(str(tmp_path))


def test_a_job_that_is_not_running_is_not_found(dead_job):
    with pytest.raises(ConfigurationError, match="is dead: its launcher was killed .* `platoon clean`"):
        JobFiles.find(dead_job.job)
    replace(dead_job, origin=Origin(log_folder="/the/logs")).write()
    with pytest.raises(ConfigurationError, match="the workers' logs stay in /the/logs"):
        JobFiles.find(dead_job.job)


def test_the_beginning_of_a_name_or_none_finds_the_one_job_that_it_fits(live_job):
    assert JobFiles.find() == live_job
    assert JobFiles.find(live_job.job[:3]) == live_job
    others = [JobFiles(size=1).create() for _ in range(17)]  # two of 18 names of hexadecimal digits begin alike
    with contextlib.ExitStack() as stack:
        for other in others:
            stack.callback(other.remove)
            stack.callback(other.lock().close)
        with pytest.raises(ConfigurationError, match="several jobs are running: name one of "):
            JobFiles.find()
        first = [files.job[0] for files in (live_job, *others)]
        twice = next(digit for digit in first if first.count(digit) > 1)
        with pytest.raises(
            ConfigurationError, match=f"got '{twice}', which several job names begin with: name one of {twice}"
        ):
            JobFiles.find(twice)
        assert JobFiles.find(others[3].job) == others[3]


def test_a_job_knows_how_it_was_started(files):
    origin = Origin(["train.py", "--rate", "0.1"], ["cpu", "cuda0"], "/logs")
    started = JobFiles(size=2, origin=origin).create()
    try:
        read = JobFiles.read(started.folder).origin
    finally:
        started.remove()
    assert (read.program, read.devices, read.log_folder) == (origin.program, origin.devices, origin.log_folder)
    assert read.pid == os.getpid()
    assert 0 <= time.time() - read.began < 60


def test_a_running_job_is_found_by_its_port(live_job):
    replace(live_job, port=5567).write()
    assert JobFiles.at_port(5567).job == live_job.job
    with pytest.raises(
        ConfigurationError, match=r"no controller at port 556 of this host, controllers have ports 5567"
    ):
        JobFiles.at_port(556)
    live_job.write()
    with pytest.raises(ConfigurationError, match="you have no running controller"):
        JobFiles.at_port(5567)


def test_two_jobs_at_one_port_are_both_named(live_job):
    other = JobFiles(size=1).create()
    try:
        with Segment.create(other.job_state, 4096):
            for files in (live_job, other):
                replace(files, port=5567).write()
            with pytest.raises(ConfigurationError, match=f"name one of them in PLATOON_JOB.*{live_job.folder}"):
                JobFiles.at_port(5567)
    finally:
        other.remove()


def test_a_dead_job_leaves_its_folder_and_its_shared_memory(dead_job):
    make_old(*traces(dead_job))
    assert found(dead_job) == traces(dead_job)
    sizes = {left.path: left.size_bytes for left in job_files.leftovers()}
    assert sizes[SHM_FOLDER / dead_job.job_state.lstrip("/")] == 4096
    assert sizes[SHM_FOLDER / str(dead_job.center).lstrip("/")] == 8192
    assert sizes[Path(dead_job.folder)] == sum(path.lstat().st_size for path in Path(dead_job.folder).iterdir())


def test_removing_the_leftovers_of_a_dead_job_leaves_nothing(dead_job):
    paths = traces(dead_job)
    make_old(*paths)
    for left in job_files.leftovers():
        if left.path in paths:
            job_files.remove(left)
            job_files.remove(left)
    assert not any(path.exists() for path in paths)


def test_the_socket_of_a_dead_data_channel_is_found_and_removed(files):
    path = Path(job_files.data_socket(5568))
    living = Path(job_files.data_socket(5569))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))  # and nobody listens
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(living))
        server.listen()
        make_old(path, living)
        (leftover,) = [left for left in job_files.leftovers() if left.path in (path, living)]
        assert leftover == job_files.Leftover(path, 0)
        assert job_files.remove(leftover)
        assert not job_files.remove(job_files.Leftover(living, 0))
    assert not path.exists()
    living.unlink()


def test_a_name_that_is_known_is_never_used_again(files):
    """A stranger who has seen it, or derives others from it, cannot take the next one."""
    before = str(files.center)
    with Segment.create(files.center, 4096) as first, Segment.create(files.center, 4096) as second:
        assert len({before, first.name, second.name}) == 3
        assert not (SHM_FOLDER / first.name[1:]).exists(), "one that a creator left is removed"
        with Segment.attach(files.center) as found:
            assert found.name == second.name
        assert job_files.in_use(files.center)
    Segment.unlink(files.center)
    assert not (SHM_FOLDER / second.name[1:]).exists()
    with pytest.raises(ConfigurationError, match="cannot open shared memory"):
        Segment.attach(files.center)


JOB_OF_NOBODY = script_path("job_files_job_of_nobody")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_who_takes_names_first_keeps_no_job_from_its_memory(tmpdir_of_jobs):
    tmpdir_of_jobs.chmod(0o777)
    environment = {**os.environ, "TMPDIR": str(tmpdir_of_jobs), NAMESPACE: ""}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    squatted = []
    with subprocess.Popen([sys.executable, JOB_OF_NOBODY], env=environment, text=True, **pipes) as process:
        state = process.stdout.readline().strip()
        try:
            for what in ("center", "collective", "data-x"):
                squatted.append(SHM_FOLDER / state[1:].replace("-state", f"-{what}"))
                squatted[-1].touch()
            output, errors = process.communicate("go on\n")
        finally:
            for path in squatted:
                path.unlink()
    assert (output.split(), process.returncode) == (["9", "9", "9"], 0), errors
    assert list(SHM_FOLDER.glob(f"{state[1:].removesuffix('state')}*")) == []


def test_a_name_that_somebody_else_has_taken_is_passed_over(files, tmp_path):
    class Guessed(HiddenName):
        names = iter([f"/{files.job}-taken", f"/{files.job}-free"])

        def fresh(self):
            return next(self.names)

    with Segment.create(f"/{files.job}-taken", 4096) as taken:
        with Segment.create(Guessed(tmp_path / "link", ""), 4096) as made:
            assert made.name == f"/{files.job}-free"
        Segment.unlink(made.name)
        Segment.unlink(taken.name)


def test_without_the_folder_of_the_job_no_memory_is_made(files):
    shutil.rmtree(files.folder)
    with pytest.raises(ConfigurationError, match="was it removed"):
        Segment.create(files.center, 4096)


def test_a_live_job_beside_a_dead_one_is_untouched(live_job, dead_job):
    make_old(*traces(live_job), *traces(dead_job))
    assert found(live_job) == set()
    assert found(dead_job) == traces(dead_job)


def test_a_center_that_outlived_its_job_is_found(live_job, dead_job):
    """The job's state is gone already: nothing but the center's name tells the job."""
    Segment.unlink(dead_job.job_state)
    center = SHM_FOLDER / str(dead_job.center).lstrip("/")
    make_old(center)
    assert found(dead_job) == {center}


def test_what_is_no_job_is_left_alone(jobs_folder, files):
    stranger = jobs_folder / "notes"
    stranger.mkdir()
    (jobs_folder / "a-file").write_text("x")
    make_old(stranger, jobs_folder / "a-file")
    assert {left.path for left in job_files.leftovers() if left.path.parent == jobs_folder} == set()
    assert job_files.running() == []


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o707])
def test_a_folder_that_others_can_enter_is_refused(jobs_folder, mode):
    jobs_folder.mkdir()
    jobs_folder.chmod(mode)
    for call in (job_files.running, job_files.leftovers, lambda: JobFiles(size=1).create()):
        with pytest.raises(PlatoonError, match="only you may have access"):
            call()
    assert list(jobs_folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(jobs_folder):
    jobs_folder.mkdir(mode=0o700)
    os.chown(jobs_folder, 65534, 65534)
    with pytest.raises(PlatoonError, match="only you may have access"):
        JobFiles(size=1).create()


def test_jobs_of_another_namespace_are_neither_seen_nor_tidied_up(dead_job, live_job, monkeypatch):
    own, prefix, namespace = traces(dead_job), job_files.segment_prefix(), os.environ[NAMESPACE]
    make_old(*own)
    monkeypatch.setenv(NAMESPACE, "Other7")
    assert job_files.segment_prefix() not in prefix
    assert not prefix.startswith(job_files.segment_prefix())
    assert job_files.leftovers() == []
    assert job_files.running() == []
    monkeypatch.delenv(NAMESPACE)
    assert not {left.path for left in job_files.leftovers()} & own
    assert live_job.folder not in {files.folder for files in job_files.running()}
    monkeypatch.setenv(NAMESPACE, namespace)
    assert found(dead_job) == own
    assert job_files.running() == [live_job]


@pytest.mark.parametrize("namespace", ["a/b", "a-b", "é", "a" * 17, " "])
def test_a_namespace_that_is_no_part_of_a_file_name_is_refused(namespace, monkeypatch):
    monkeypatch.setenv(NAMESPACE, namespace)
    with pytest.raises(ConfigurationError, match="up to 16 letters and digits"):
        job_files.segment_prefix()


def put_a_pipe(path):
    os.mkfifo(path, 0o666)


def put_a_link(path):
    path.symlink_to("/dev/shm")


def put_a_broken_link(path):
    path.symlink_to("nowhere")


def put_a_file(path):
    path.write_text("x")
    path.chmod(0o666)


def put_an_unreadable_file(path):
    path.write_text("x")
    path.chmod(0)


STRANGERS = [put_a_pipe, put_a_link, put_a_broken_link, put_a_file, put_an_unreadable_file, Path.mkdir]
COMMAND_OF_NOBODY = script_path("job_files_command_of_nobody")


@pytest.fixture
def place():
    """A path under which the shared memory of this user's jobs may be."""
    path = SHM_FOLDER / f"{job_files.segment_prefix()}{secrets.token_hex(6)}-state".lstrip("/")
    yield path
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def age(path):
    os.utime(path, (0, 0), follow_symlinks=False)


@pytest.mark.parametrize("put", [put for put in STRANGERS if put not in (put_a_file, put_an_unreadable_file)])
def test_what_is_no_shared_memory_is_passed_over(place, dead_job, put):
    put(place)
    age(place)
    make_old(*traces(dead_job))
    assert place not in {left.path for left in job_files.leftovers()}
    assert found(dead_job) == traces(dead_job)
    assert job_files.running() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_nothing_that_another_user_puts_there_ends_a_command(tmp_path):
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:2]:  # a slice of parents came with Python 3.10
        parent.chmod(0o755)
    user = 20_000 + secrets.randbelow(40_000)  # one of its own, as a command tidies up all that its user has
    own, *strange = (SHM_FOLDER / f"platoon-{user}-{secrets.token_hex(6)}-state" for _ in range(1 + len(STRANGERS)))
    own.write_bytes(bytes(100))
    os.chown(own, user, user)
    age(own)
    try:
        for put, path in zip(STRANGERS, strange):
            put(path)
            age(path)
        for command, expected in (("jobs", ""), ("clean", f"removed           100 bytes  {own}")):
            environment = {**os.environ, "TMPDIR": str(tmp_path), NAMESPACE: ""}
            done = run_python(COMMAND_OF_NOBODY, user, command, env=environment)
            assert done.stdout.strip() == expected, done.stderr
        assert all(map(os.path.lexists, strange))
    finally:
        own.unlink(missing_ok=True)
        for path in strange:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("link", [False, True])
def test_a_foreign_folder_of_jobs_is_passed_over_with_a_word(jobs_folder, dead_job, caplog, link):
    paths = traces(dead_job)
    make_old(*paths)
    jobs_folder.rename(jobs_folder.with_name("away"))
    if link:
        jobs_folder.symlink_to("away")
    else:
        jobs_folder.mkdir(mode=0o755)
        os.chown(jobs_folder, 65534, 65534)
    assert job_files.running() == []
    # The folder cannot be trusted; the memory is ours.
    assert found(dead_job) == {path for path in paths if path.parent == SHM_FOLDER}
    assert "only you may have access" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_in_the_folder_of_jobs_only_what_is_ours_counts(jobs_folder, files):
    link, file, foreign = (jobs_folder / secrets.token_hex(6) for _ in range(3))
    link.symlink_to(files.folder)
    file.write_text("x")
    foreign.mkdir()
    os.chown(foreign, 65534, 65534)
    for path in (link, file, foreign):
        age(path)
    assert job_files.leftovers() == []
    assert job_files.running() == []


@pytest.mark.parametrize("kind", ["pipe", "link", "endless"])
def test_a_description_that_is_no_file_is_refused_at_once(live_job, kind):
    path = Path(live_job.folder, "job.json")
    path.rename(path.with_suffix(".kept"))
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("job.kept" if kind == "link" else "/dev/zero")
    assert job_files.running() == []
    with pytest.raises(ConfigurationError, match="not the folder of a running job"):
        JobFiles.read(live_job.folder)


def test_a_description_says_nothing_of_what_is_removed(files, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    description = Path(files.folder, "job.json")
    description.write_text(description.read_text().replace(files.folder, str(precious)))
    read = JobFiles.read(files.folder)
    assert read.folder == files.folder
    read.remove()
    assert precious.exists()
    assert not Path(files.folder).exists()


def test_a_job_named_by_a_relative_path_stays_where_it_is(files, tmp_path, monkeypatch):
    """Its folder is removed by the last who leaves it, maybe from another working directory."""
    monkeypatch.chdir(files.folder)
    read = JobFiles.read(".")
    monkeypatch.chdir(tmp_path)
    assert read == files


@pytest.mark.parametrize("job", ["../../x", "x", ""])
def test_a_description_names_a_job_or_is_refused(files, job):
    description = Path(files.folder, "job.json")
    description.write_text(description.read_text().replace(f'"{files.job}"', f'"{job}"'))
    with pytest.raises(ConfigurationError, match="not 12 hexadecimal digits"):
        JobFiles.read(files.folder)


def test_a_job_that_holds_its_folder_lives_though_its_shared_memory_cannot_be_seen(files):
    make_old(Path(files.folder))
    lock = files.lock()
    make_old(Path(files.folder))
    assert found(files) == set()
    assert job_files.running() == [files]
    assert not job_files.remove(job_files.Leftover(Path(files.folder), 0))
    lock.close()
    assert found(files) == {Path(files.folder)}
    assert job_files.running() == []


def test_a_job_whose_controller_is_dead_does_not_lend_its_number_to_be_killed():
    """A late joiner has the job's memory open, and the number of the controller belongs to somebody else by now."""
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        files = JobFiles(size=1).create()
        files = replace(files, origin=replace(files.origin, pid=other.pid))
        with Segment.create(files.job_state, 4096):
            with pytest.raises(ConfigurationError, match="has ended already"):
                kill(files)
            assert other.poll() is None
            with contextlib.closing(files.lock()):
                kill(files)
        assert other.wait(200) == -signal.SIGKILL
        files.remove()
    finally:
        other.kill()
        other.communicate()


def test_a_log_is_never_written_through_a_link(tmp_path):
    """In a folder that others may write to, a stranger can put one there first."""
    precious, log = tmp_path / "precious", tmp_path / "rank0.log"
    precious.write_text("precious")
    log.symlink_to(precious)
    with pytest.raises(ConfigurationError, match="not writing to .*rank0.log: .* another user may have put it there"):
        open_log(log)
    log.unlink()
    os.link(precious, log)
    with pytest.raises(ConfigurationError, match="not writing to"):
        open_log(log)
    log.unlink()
    for line in (b"one\n", b"two\n"):
        with os.fdopen(open_log(log), "ab") as file:
            assert os.get_blocking(file.fileno()), "the workers inherit it"
            file.write(line)
    assert (log.read_text(), precious.read_text()) == ("one\ntwo\n", "precious")


def test_what_is_written_as_a_whole_takes_the_place_of_a_link(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "error.json").symlink_to("precious")
    write_whole(tmp_path / "error.json", b"new")
    assert not (tmp_path / "error.json").is_symlink()
    assert [(tmp_path / name).read_text() for name in ("error.json", "precious")] == ["new", "precious"]
    assert sorted(os.listdir(tmp_path)) == ["error.json", "precious"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a link of root, as root")
def test_a_file_that_the_user_names_goes_through_a_link_of_root(tmp_path, monkeypatch):
    """Such as /dev/stdout."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "summary").symlink_to("real")
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    write_where_named(tmp_path / "summary", b"new")
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_file_that_the_user_names_goes_through_a_link_of_the_users_own_alone(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "summary").symlink_to("real")
    write_where_named(tmp_path / "summary", b"new")
    assert (tmp_path / "summary").is_symlink()
    os.chown(tmp_path / "summary", 65534, -1, follow_symlinks=False)
    with pytest.raises(ConfigurationError, match="not writing to .*summary"):
        write_where_named(tmp_path / "summary", b"newer")
    assert (tmp_path / "real").read_text() == "new"
    write_where_named(Path(os.devnull), b"x")
    assert not Path(os.devnull).is_file()


def test_the_code_builds_all_paths_of_the_table_and_no_others():
    texts = [path.read_text() for path in Path(job_paths.__file__).parents[1].rglob("*.py")]
    built = {name for text in texts for name in re.findall(r"\bpath_of\([^\n]*?, [\"'](\w+)[\"']", text)}
    assert built == set(job_paths.FILES) - {"failure"}  # made of the path of a log
