from forked_children_head import CHILD, die_with_a_child, end_child
from watching import await_file
from platoon_base import connect

with connect() as worker:
    if worker.global_rank == 1:
        worker.lock()
        die_with_a_child()
    try:
        await_file(CHILD)
        worker.lock(timeout_s=50)
        worker.report({"has it": 1})
    finally:
        end_child()
