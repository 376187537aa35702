"""Steps of a PyTorch loop with averaged gradients, against DistributedDataParallel.

The same workers make blocks of steps by each way in turn: without averages, by DistributedDataParallel (gloo on the
CPU, NCCL on CUDA) twice, and by `GradientAverage`, behind the backward pass and overlapping it. The ratio is the median
over blocks of a block's step to that by DistributedDataParallel in the same round, and the mean of the workers' times;
the ratio of the two blocks of DistributedDataParallel shows how much of it is noise. On CUDA a fourth model is
torchvision's ResNet-50 at 224 x 224 in bfloat16 and channels_last, with 128 rows a worker, and the default rule after
each step.

    python benchmarks/torch_ddp.py [--device cuda] [--workers 2] [--models ResNet-50] [--quick]
"""

import datetime

import harness

GOALS = {"10 MB": 1.0, "50 MB": 1.05}
MODELS = {"20 KB": (64, 1), "10 MB": (1130, 2), "50 MB": (1800, 4)}  # units, hidden layers
WAYS, BATCH = ("alone", "DDP", "DDP again", "average", "overlapping"), 64
RESNET, RULE = "ResNet-50", "default rule"


def work(given):
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    from platoon_base import connect
    from platoon_base.torch_loops import GradientAverage

    device = torch.device(given.device)
    worker = connect()
    group = {"rank": worker.global_rank, "world_size": worker.global_size}
    group |= {"init_method": f"file://{given.folder}/store", "timeout": datetime.timedelta(seconds=120)}
    distributed.init_process_group("nccl" if given.device == "cuda" else "gloo", **group)

    def resnet():
        import torchvision

        torch.backends.cudnn.benchmark = True
        x, y = torch.randn(128, 3, 224, 224, device=device), torch.randint(1000, (128,), device=device)
        model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
        return model, x.to(memory_format=torch.channels_last), y

    def perceptron(units, layers):
        hidden = [part for _ in range(layers) for part in (nn.Linear(units, units), nn.ReLU())]
        model = nn.Sequential(*hidden, nn.Linear(units, 10)).to(device)
        return model, torch.randn(BATCH, units, device=device), torch.randint(10, (BATCH,), device=device)

    def step_of(way, name):
        torch.manual_seed(0)
        model, x, y = resnet() if name == RESNET else perceptron(*MODELS[name])
        rows = len(x)
        trained = DistributedDataParallel(model) if way.startswith("DDP") else model
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        average = GradientAverage(worker, model) if way in WAYS[3:] else None

        def step():
            optimizer.zero_grad()
            with torch.autocast(given.device, torch.bfloat16, enabled=name == RESNET):
                loss = nn.functional.cross_entropy(trained(x), y)
            if way == "overlapping":
                with average.overlapping(rows):
                    loss.backward()
            else:
                loss.backward()
                if average:
                    average(rows)
            optimizer.step()
            if way == RULE:
                worker.sync_params()
            if given.device == "cuda":
                torch.cuda.synchronize()

        def block():
            if way == RULE:
                worker.init_shared_params(list(model.parameters()))
            for _ in range(2):  # The first two synchronizations also compare all values with earlier ones.
                step()
            worker.barrier()
            found = harness.seconds(step, given.steps)
            if way == RULE:
                worker.release_shared_params()
            return found

        if way != RULE:
            for _ in range(3):
                step()
        return block

    times = {}
    for name in given.models:
        calls = {way: step_of(way, name) for way in (*WAYS, *[RULE] * (name == RESNET))}
        times[name] = harness.interleaved(calls, given.blocks)
    harness.give(worker.global_rank, times)
    distributed.destroy_process_group()
    worker.close()


def measure():
    options = harness.options(__doc__, device="cpu", workers=2, models=[*MODELS, RESNET])
    device = options.device
    blocks, steps, models = (2, 2, list(MODELS)[:2]) if options.quick else (15, 8, options.models)
    models = [name for name in models if name != RESNET or device == "cuda"]
    values = {"device": device, "blocks": blocks, "steps": steps, "models": models}
    devices = [f"{device}{rank}" if device == "cuda" else device for rank in range(options.workers)]
    ranks = harness.job(__file__, values, devices=devices, env=harness.ONE_THREAD)
    rows = []
    for name in models:
        of_ways = {way: zip(*(rank[name][way] for rank in ranks)) for way in ranks[0][name]}
        times = {way: [sum(each) / len(ranks) for each in rounds] for way, rounds in of_ways.items()}
        found = harness.compared(times, "DDP", gradients=name)
        rows += found
        ratios = {row["way"]: row["ratio"] for row in found}
        if name == RESNET:
            for way, most in (("average", 1.0), ("overlapping", 1.0), (RULE, 1 / 1.02)):
                harness.goal(f"{way}: a step of ResNet-50, over DDP's", ratios[way], most, at_least=False)
        if name in GOALS:
            best = min(ratios[way] for way in WAYS[3:])
            harness.goal(f"a step of {name}, over DistributedDataParallel's", best, GOALS[name], at_least=False)
    harness.table(f"{options.workers} workers on {device}; ratios to DistributedDataParallel", rows)
    harness.save("torch_ddp" if device == "cpu" else f"torch_ddp-{device}", {"results": rows}, options)


if __name__ == "__main__":
    harness.main(measure, work)
