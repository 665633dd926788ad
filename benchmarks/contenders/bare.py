"""A bare loop in one process with one thread; prints the seconds of the loop alone, without its start."""

from __future__ import annotations

import time

import torch
from common import Work, train, work_file

work = Work(work_file())
data = {site: work.images(site) for site in work.sites}
network = work.network()
weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
warm = work.network()
train(warm, *(tensor[: work.batch_size] for tensor in data[work.sites[0]]), work.batch_size, 0)
started = time.perf_counter()
for number in range(work.rounds):
    sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in weights.items()}
    total = 0
    for images, labels in data.values():
        network.load_state_dict(weights)
        train(network, images, labels, work.batch_size, number)
        for name, tensor in network.state_dict().items():
            sums[name].add_(tensor, alpha=len(images))
        total += len(images)
    weights = {name: (tensor / total).to(weights[name].dtype) for name, tensor in sums.items()}
print(time.perf_counter() - started)
