"""Which of the hosts of a job a launcher is on, by options and by the variables of engines."""

import os

import pytest
from programs import run_python

from platoon_base.errors import ConfigurationError
from platoon_base.hosts import LOCAL, Place, World, engine_job, find_copies, find_endpoint, find_place, first_of

pytestmark = pytest.mark.base


def srun(processes, rank, tasks, node=0):
    return {
        "SLURM_STEP_NUM_TASKS": str(processes),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NODEID": str(node),
    }


def mpirun(processes, rank, here):
    names = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    return dict(zip(names, map(str, (processes, rank, here))))


# As the engines set them: Slurm 22.05, Open MPI 4.1 and MPICH 4.
PLACES = {
    "none": ({}, (1, 0)),
    "a batch script of four hosts": ({"SLURM_JOB_NUM_NODES": "4", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}, (1, 0)),
    "srun -N1": (srun(1, 0, "1"), (1, 0)),
    "srun -N3": (srun(3, 2, "1(x3)", 2), (3, 2)),
    "srun of uneven hosts, on one with one task": (srun(4, 3, "1(x2),1,1", 3), (4, 3)),
    "mpirun -np 1": (mpirun(1, 0, 1), (1, 0)),
    "mpirun -np 2": (mpirun(2, 1, 1), (2, 1)),
    "mpirun within srun": ({**srun(2, 0, "1(x2)"), **mpirun(3, 2, 1)}, (3, 2)),
    "mpirun -np 1 within srun": ({**srun(2, 0, "1(x2)"), **mpirun(1, 0, 1)}, (1, 0)),
    "mpiexec of MPICH": ({"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "1"}, (2, 1)),
    "mpiexec of MPICH within srun": (
        {**srun(1, 0, "1"), "PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "1"},
        (2, 1),
    ),
    "srun with PMI": ({**srun(2, 1, "1(x2)", 1), "PMI_SIZE": "2", "PMI_RANK": "1"}, (2, 1)),
    "a list of tasks that nobody knows": (srun(2, 1, "?", 1), (2, 1)),
    "torchrun's variables": ({"PET_NNODES": "2", "PET_NODE_RANK": "1"}, (2, 1)),
    "those before an engine's": ({"PET_NNODES": "2", "PET_NODE_RANK": "0", **srun(4, 3, "1(x4)", 3)}, (2, 0)),
    "an indexed job": ({"PET_NNODES": "2", "JOB_COMPLETION_INDEX": "1"}, (2, 1)),
    "torchrun's number that is not elastic": ({"PET_NNODES": "2:2", "PET_NODE_RANK": "1"}, (2, 1)),
    "an index alone": ({"JOB_COMPLETION_INDEX": "1"}, (1, 0)),
    "empty": ({"PET_NNODES": "", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": ""}, (1, 0)),
}


@pytest.mark.parametrize("case", PLACES)
def test_the_place(case):
    environment, (hosts, index) = PLACES[case]
    found = find_place(environment)
    assert found[:2] == (hosts, index)
    assert bool(found.origin) == (hosts > 1)


def test_options_count_first():
    environment = {"PET_NNODES": "3", "PET_NODE_RANK": "1", **mpirun(4, 3, 1)}
    assert find_place(environment, 2, 0) == Place(2, 0, "--nnodes")
    assert find_place(environment, 2)[:2] == (2, 1)
    assert find_place(srun(2, 1, "1(x2)", 1), 2) == Place(2, 1, "--nnodes")
    assert find_place({"PET_NODE_RANK": "x"}, 1) == LOCAL
    with pytest.raises(ConfigurationError, match="got host 1 of 1"):
        find_place({}, 1, 1)
    with pytest.raises(ConfigurationError, match="got host 1, and the number of hosts is unknown"):
        find_place({}, None, 1)
    assert find_place(environment, 1) == find_place(mpirun(4, 3, 4), 1) == LOCAL


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((None, 0), ["got host 0, and the number of hosts is unknown", "--nnodes 1 for a job on this host"]),
        ((None, 0, "10.0.0.1"), ["got host 0, and the number of hosts is unknown"]),
        ((None, None, "10.0.0.1"), ["got --rdzv-endpoint 10.0.0.1", "pass --nnodes N on all of them"]),
    ],
)
def test_options_of_several_hosts_without_their_number_are_refused(given, said):
    with pytest.raises(ConfigurationError) as caught:
        find_place({}, *given)
    for part in said:
        assert part in str(caught.value)
    assert find_place({}, 1, *given[1:]) == LOCAL


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (srun(4, 1, "2(x2)", 0), ["got 4 launchers from srun", "2 of them on one host", "srun -N1 -n1"]),
        (srun(5, 4, "1,2(x2)", 2), ["got 5 launchers from srun", "2 of them on one host"]),
        (srun(4, 0, "3,1", 0), ["got 4 launchers from srun", "3 of them on one host"]),
        (srun(4, 3, "3,1", 1), ["got 4 launchers from srun", "3 of them on one host"]),  # refused with the others
        (mpirun(4, 1, 4), ["got 4 launchers from mpirun", "4 of them on one host", "--nnodes 1"]),
        (
            {**srun(1, 0, "1"), "PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALNRANKS": "4"},
            ["got 4 launchers from mpiexec", "4 of them on one host"],
        ),
        ({"PMI_SIZE": "4", "PMI_RANK": "2", "PMI_LOCAL_SIZE": "2"}, ["got 4 launchers from mpiexec", "2 of them"]),
        ({"PET_NODE_RANK": "1"}, ["got host 1, and the number of hosts is unknown"]),
        ({"PET_NODE_RANK": "0"}, ["got host 0, and the number of hosts is unknown"]),
        ({"PET_NNODES": "2"}, ["2 hosts from PET_NNODES", "--node-rank 0 on the first host"]),
        ({"PET_NNODES": "1:4"}, ["PET_NNODES='1:4'", "a whole number"]),
        ({"PET_NNODES": "0", "PET_NODE_RANK": "0"}, ["got 0 hosts from PET_NNODES"]),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "2"}, ["got host 2 of 2", "0 to 1"]),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "-1"}, ["PET_NODE_RANK='-1'", "a whole number"]),
        (mpirun(2, "x", 1), ["OMPI_COMM_WORLD_RANK='x'"]),
    ],
)
def test_what_makes_no_sense_is_refused(environment, said):
    with pytest.raises(ConfigurationError) as caught:
        find_place(environment)
    for part in said:
        assert part in str(caught.value)


def test_a_launcher_of_several_trains_no_model_of_its_own(platoon, write_script, tmp_path):
    script, variables = write_script("print('trained')"), srun(2, 1, "1(x2)", 1)
    done = platoon(
        "launch", "-n", 1, "--rdzv-timeout", 0.1, script, environment={**variables, "PLATOON_KEY_FILE": "no"}
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no key in no" in done.stderr
    assert not (tmp_path / "platoon_logs").exists()
    assert "trained" in platoon("launch", "--nnodes", 1, "-n", 1, script, environment=variables).stdout


def test_the_originals_launcher_refuses(write_script, tmp_path):
    for role in ("worker", "controller"):
        write_script("print('trained')", f"it_{role}.py")
    code = "from platoon_base.cli.platoon_launcher import main; raise SystemExit(main())"
    environment = {**os.environ, **srun(2, 1, "1(x2)", 1)}
    done = run_python("-c", code, "it", "-D", "cpu", status=2, cwd=tmp_path, env=environment)
    assert "this is host 1 of 2 according to srun" in done.stderr


# The processes that an engine has started as this one, and the rank of this one; None where there is one.
COPIES = {
    "none": ({}, None),
    "torchrun": ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}, (2, 1)),
    "torchrun with one process": ({"WORLD_SIZE": "1", "RANK": "0"}, None),
    "torchrun with one process within srun": ({**srun(2, 0, "1(x2)"), "WORLD_SIZE": "1", "RANK": "0"}, None),
    "WORLD_SIZE alone": ({"WORLD_SIZE": "8"}, None),
    "WORLD_SIZE of somebody else": ({"WORLD_SIZE": "big", "RANK": "a"}, None),
    "horovodrun": ({"HOROVOD_SIZE": "4", "HOROVOD_RANK": "0"}, (4, 0)),
    "mpirun, two on this host": (mpirun(2, 0, 2), (2, 0)),
    "mpirun -np 1 within srun": ({**srun(2, 0, "1(x2)"), **mpirun(1, 0, 1)}, None),
    "mpiexec of MPICH": ({"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "2"}, (2, 1)),
    "MVAPICH": ({"MV2_COMM_WORLD_SIZE": "3", "MV2_COMM_WORLD_RANK": "2"}, (3, 2)),
    "srun": (srun(4, 3, "2(x2)", 1), (4, 3)),
    "srun -n1": (srun(1, 0, "1"), None),
    "the batch script of an allocation": ({"SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0"}, None),
    "a step of one task in it": ({"SLURM_NTASKS": "4", **srun(1, 0, "1")}, None),
}


@pytest.mark.parametrize("case", COPIES)
def test_processes_that_an_engine_has_started_without_a_launcher(case):
    environment, expected = COPIES[case]
    found = find_copies(environment)
    assert found == expected if expected is None else found[:2] == expected


@pytest.mark.parametrize(("rank", "job", "warns"), [("0", False, True), ("1", False, False), ("0", True, False)])
def test_the_first_of_such_processes_is_warned_that_it_trains_alone(tmp_path, rank, job, warns):
    """By `connect`, through which all adapters go; not in a worker of a job, and once."""
    script = tmp_path / "train.py"
    script.write_text("from platoon_base import connect\nfor _ in range(2):\n    connect().close()\n")
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": rank}
    words = ["-m", "platoon_base", "launch", "-n", "1", "--tee", "all"] if job else []
    done = run_python(*words, script, env=environment, cwd=tmp_path)
    text = "2 processes were started by torchrun or the like (WORLD_SIZE=2), and each of them trains alone"
    assert (done.stdout + done.stderr).count(text) == warns
    assert ("`platoon launch -n 2`" in done.stderr) == warns


# Ranks and hosts.


def test_workers_are_numbered_host_by_host():
    world = World([2, 1, 3], host=2)
    assert (world.hosts, world.several, world.size) == (3, True, 6)
    assert [list(world.ranks_on(host)) for host in range(3)] == [[0, 1], [2], [3, 4, 5]]
    assert world.ranks_here == range(3, 6)
    assert [world.host_of(rank) for rank in range(6)] == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_that_was_not_launched_has_no_host(rank):
    with pytest.raises(IndexError):
        World([2, 1]).host_of(rank)


def test_its_text_does_not_show_the_key():
    assert "secret" not in repr(World([1, 1], data_key="secret"))


# Where the first host listens, by options, torchrun's variables and those of engines.


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, None, ""),
        ({}, "a:1", "a:1"),
        ({"PET_RDZV_ENDPOINT": "b:2", "MASTER_ADDR": "c"}, None, "b:2"),
        ({"PET_RDZV_ENDPOINT": "b:2"}, "a", "a"),
        ({"MASTER_ADDR": "c"}, None, "c"),
        ({"MASTER_ADDR": "c", "MASTER_PORT": "3"}, None, "c:3"),
        ({"MASTER_PORT": "3"}, None, ""),
        ({"SLURM_STEP_NODELIST": "n[08-11]"}, None, ""),  # no job
    ],
)
def test_the_first_that_says_it_counts(environment, given, expected):
    assert find_endpoint(environment, given) == expected


def test_in_a_step_of_slurm_all_find_the_same_and_steps_have_ports_of_their_own():
    environment = {"SLURM_STEP_NODELIST": "n[08-11],m3", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    host, port = find_endpoint(environment).split(":")
    assert host == "n08"
    assert 1024 < int(port) < 32768
    ports = {
        find_endpoint({**environment, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        for job in range(20)
        for step in range(20)
    }
    assert len(ports) > 390


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("h0", "h0"),
        ("h0,h1", "h0"),
        ("h[0-1]", "h0"),
        ("node[008-011,020]-ib,login", "node008-ib"),
        ("a-b.c[3,7]", "a-b.c3"),
        ("", ""),
    ],
)
def test_the_first_node_of_a_list(nodes, first):
    assert first_of(nodes) == first


def test_the_processes_of_one_mpirun_share_a_name():
    assert engine_job({"PMIX_NAMESPACE": "prterun-h0-1@1"}) == "PMIX_NAMESPACE-prterun_h0_1_1"
    assert engine_job({"PMI_JOBID": "5"}) == "PMI_JOBID-5"
    assert engine_job({}) == ""
