"""A worker of the batched sum: it reports the sum of each mini-batch it gets; see batched_sum_controller.py."""

from platoon_base.platoon_api.channel import Worker

DATA_PORT = 5568


def main(worker):
    """Sum mini-batches until an empty one comes."""
    batches = 0
    while True:
        (numbers,) = worker.recv_mb()
        if not numbers.size:
            break
        worker.send_req("sum", float(numbers.sum(dtype="float64")))
        batches += 1
    print(f"worker {worker.global_rank} has summed {batches} batches")
    worker.close()


if __name__ == "__main__":
    parser = Worker.default_parser()
    parser.set_defaults(data_port=DATA_PORT)
    main(Worker(**Worker.default_arguments(parser.parse_args())))
