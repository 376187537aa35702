"""Workers that synchronize by turns: workers_in_turns.py FOLDER RULE PLAN TURNS...

TURNS are in JSON: [[number, rank], ...]. After the first ones

* leaves, killed: rank 2 does so
* late: another worker joins, makes the second ones, and leaves
* again: rank 1 is killed, is started again, makes the second ones, and leaves
* overwritten: rank 1 overwrites the center
* alone: in a job of one that is resumed, the worker moves the center, and another one joins

Any other plan is the name of a job.
"""

from job_preamble import CenterMomentum, GoSGD, Path, await_file, join_late, json, np, os, rank
from job_preamble import signal, sys, until, worker
from learned_progress import SHAPES, progress
from watching import center_of, living

folder, plan = Path(sys.argv[1]), sys.argv[3]
TURNS = [json.loads(each) for each in sys.argv[4:]]
GOSSIPS = sys.argv[2] == "GoSGD"
RULE = GoSGD(probability=0.5, seed=5) if GOSSIPS else CenterMomentum()
x = [np.ones((3, 4)), np.ones(5)] if GOSSIPS else [np.ones(shape, dtype) for shape, dtype in SHAPES]
seen = {}


def note(turn, name, arrays):
    seen.update({f"{turn} {name} {i}": array.copy() for i, array in enumerate(arrays)})


def read_center():
    with center_of(x, RULE) as center:
        return center.snapshot()


def synchronize(turn):
    for array in x:
        array += progress(rank, turn, array.shape, array.dtype)
    worker.progress(steps=1, epoch=1)
    worker.sync_params()
    note(turn, "x", x)
    if GOSSIPS:
        with worker.center_params():
            note(turn, "c", x)
    else:
        values, (m, s) = read_center()
        for name, arrays in (("c", values), ("m", m), ("s", s)):
            note(turn, name, arrays)


def take_turns(turns):
    for turn, who in turns:
        if who == rank:
            synchronize(turn)
        worker.barrier(f"after turn {turn}")


def save(name=""):
    np.savez(folder / f"{name}{rank}.npz", **seen)


def make_turns_and_leave(turns):
    for turn, who in turns:
        assert who == rank
        synchronize(turn)
    save()
    worker.close()
    (folder / "has left").touch()
    raise SystemExit


def move_the_center():
    """Look at the momentum of a center that a worker moves which resumes the job alone."""
    values, (m, s) = read_center()
    assert all((state != 0).all() for state in m)
    for array in x:
        array.reshape(-1)[1:] += 1
    worker.sync_params()
    after, (m_after, s_after) = read_center()
    for i, array in enumerate(x):
        assert (after[i] == array).all()
        assert (s_after[i] == s[i]).all()
        assert not m_after[i].reshape(-1)[1:].any()
        assert m_after[i].flat[0] == m[i].flat[0]


with worker:
    worker.init_shared_params(x, RULE)
    if plan == "alone" and worker.late:
        values, (m, s) = read_center()
        worker.sync_params()  # it sits at the center: nothing but momentum could move it
        for now, old, momentum in zip(x, values, m):
            assert ((now != old) == (momentum != 0)).all()
        raise SystemExit
    if plan == "alone" and worker.global_size == 1:
        move_the_center()
        join_late()
        raise SystemExit
    if plan == "late" and worker.late:
        assert living() == 3
        make_turns_and_leave(TURNS[1])
    if (folder / "first1.npz").exists() and plan == "again":
        make_turns_and_leave(TURNS[1])
    worker.barrier("all here")
    if plan in ("first", "second"):
        assert (worker.resume_at.steps == 0) == (plan == "first"), worker.resume_at
    take_turns(TURNS[0])
    save(plan if plan in ("first", "second") else "")
    if plan in ("leaves", "killed"):
        if rank == 2:
            if plan == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            worker.close()
            (folder / "has left").touch()
            raise SystemExit
        if plan == "leaves":
            await_file(folder / "has left")  # with gossip its weight has been given to another by then
        until(lambda: living() == 2)
        worker.barrier("two are left")
    elif plan == "late":
        if rank == 0:
            join_late()
        worker.barrier("the late one has gone")
        until(lambda: living() == 2)
    elif plan == "again":
        if rank == 1:
            save("first")
            os.kill(os.getpid(), signal.SIGKILL)
        await_file(folder / "has left")
    elif plan == "overwritten":
        if rank == 1:
            worker.copy_to_global()
        worker.barrier("overwritten")
    if TURNS[1:]:
        take_turns(TURNS[-1])
        save()
    if GOSSIPS and plan in ("first", "second"):
        worker.release_shared_params()
