"""A prepared loop of NumPy or torch, which continues at the epoch of the job; a worker may die in it once."""

from job_preamble import Path, connect, np, os, sys, until

start, end = max(1, connect().resume_at.epoch), int(sys.argv[3])
dies = len(sys.argv) > 4 and connect().global_rank == 1


def begin(epoch):
    if dies and epoch == 2 and not Path(sys.argv[1], "died").exists():
        Path(sys.argv[1], "died").touch()
        until(lambda: any(Path(sys.argv[4]).glob("checkpoint-*.npz")))
        os._exit(3)


if sys.argv[2] == "torch":
    import torch
    from platoon_base.torch_loops import prepare

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(40, 3)), 5)
    model, optimizer, data = prepare(model, optimizer, data)
    for epoch in range(start, end + 1):
        begin(epoch)
        for (x,) in data:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
else:
    from platoon_base.array_loops import batches, common, prepare, sync

    w = prepare(np.zeros(3))
    rows = batches(40, 5)
    for epoch in range(start, end + 1):
        begin(epoch)
        for batch in rows:
            w += 0.01 * len(batch)
            w = sync(w)
        w = common(w)
print("started at", start)
