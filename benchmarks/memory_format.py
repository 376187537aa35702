"""Synchronizations and averaged gradients of ResNet-50 in torch.channels_last, against contiguous memory.

Two workers share the device. Contiguous, channels_last on both workers, and channels_last on the first alone are
measured in turn, in the same processes; printed are medians of all rounds and both workers.

    python benchmarks/memory_format.py [--device cuda0] [--rounds 7]
"""

import harness

CALLS, GOAL = 10, 1.05
MEMORY = ("contiguous", "channels_last", "on the first worker")


def shapes():
    """Yield the shapes of the parameters of ResNet-50, of He et al. (2016): 25.6 million values."""
    yield from ((64, 3, 7, 7), (64,), (64,))
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, before, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                yield from (shape, shape[:1], shape[:1])
            if not block:
                yield from ((4 * width, before, 1, 1), (4 * width,), (4 * width,))
            before = 4 * width
    yield from ((1000, 2048), (1000,))


def work(given):
    import torch

    from platoon_base import connect
    from platoon_base.torch_loops import GradientAverage

    worker = connect()
    device = "cpu" if worker.device == "cpu" else "cuda"

    def parameters(channels_last):
        torch.manual_seed(0)
        made = [torch.nn.Parameter(0.01 * torch.randn(shape, device=device)) for shape in shapes()]
        for parameter in made:
            if channels_last and parameter.ndim == 4:
                parameter.data = parameter.data.to(memory_format=torch.channels_last)
            parameter.grad = torch.ones_like(parameter)
        return made

    def settle():
        if device == "cuda":
            torch.cuda.synchronize()

    def seconds_of(call):
        call()
        taken = []
        for _ in range(CALLS):
            worker.barrier()
            settle()
            taken.append(harness.seconds(lambda: (call(), settle())))
        return taken

    def overlapping(average, model):
        with average.overlapping():
            for parameter in model:
                parameter.grad = None
            torch.stack([(parameter * 1e-3).sum() for parameter in model]).sum().backward()

    seconds = {}
    for _ in range(given.rounds):
        for memory in MEMORY:
            first = memory == MEMORY[2] and not worker.global_rank
            model = parameters(memory == MEMORY[1] or first)
            worker.init_shared_params(model)
            seconds.setdefault(f"sync {memory}", []).extend(seconds_of(worker.sync_params))
            worker.release_shared_params()
            average = GradientAverage(worker, model)
            calls = {"average": average, "overlapping": lambda a=average, m=model: overlapping(a, m)}
            for name, call in calls.items():
                seconds.setdefault(f"{name} {memory}", []).extend(seconds_of(call))
            average.close()
    harness.give(worker.global_rank, seconds)
    worker.close()


def measure():
    options = harness.options(__doc__, device="cuda0", rounds=7)
    device, rounds = options.device, 1 if options.quick else options.rounds
    ranks = harness.job(__file__, {"rounds": rounds}, devices=[device, device])
    rows = []
    for what in ("sync", "average", "overlapping"):
        of = {m: harness.median(s for rank in ranks for s in rank[f"{what} {m}"]) for m in MEMORY}
        over = {memory: s / of[MEMORY[0]] for memory, s in of.items()}
        rows += [{"what": what, "memory": m, "ms": 1e3 * of[m], "over_contiguous": over[m]} for m in MEMORY]
        harness.goal(f"{what} in channels_last, over contiguous", over[MEMORY[1]], GOAL, at_least=False)
    harness.table(f"ResNet-50, two workers on {device}", rows)
    harness.save("memory_format" if device == "cpu" else "memory_format-cuda", {"results": rows}, options)


if __name__ == "__main__":
    harness.main(measure, work)
