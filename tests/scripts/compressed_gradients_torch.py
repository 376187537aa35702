import sys

import torch
from gradients_here import labels, mine, rank, rows, say_results, sent_bytes, worker

from platoon_base.torch_loops import GradientAverage

torch.manual_seed(rank)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
).to(device)
average = GradientAverage(worker, model, bucket_bytes=1 << 18)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
x, y = torch.from_numpy(rows).to(device), torch.from_numpy(labels).long().to(device)
before = sent_bytes()
for epoch in range(4):
    for a, b in zip(x[mine].split(50), y[mine].split(50)):  # the last batch has another size
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(a), b)
        if sys.argv[1] == "behind":
            loss.backward()
            average(len(a))
        else:
            with average.overlapping(len(a)):
                loss.backward()
        optimizer.step()
sent = sent_bytes() - before
with torch.no_grad():
    say_results(torch.nn.functional.cross_entropy(model(x), y), [p.cpu().numpy() for p in model.parameters()], sent)
worker.barrier("end")
