#!/usr/bin/env python3
"""pytorch_speed.py MODEL BATCH: samples per second of training MODEL with PyTorch on one GPU, in float32 without TF32.

lenet as tests/parity/dp_reference.py defines it, ResNets as torchvision does.
"""
import sys
import time

import torch
from torch import nn


def build(name):
    if name == "lenet":
        return nn.Sequential(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2),
                             nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
                             nn.Linear(512, 10)), (1, 28, 28), 10
    import torchvision
    return getattr(torchvision.models, name)(), (3, 224, 224), 1000


def main():
    name, batch = sys.argv[1], int(sys.argv[2])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    model, shape, classes = build(name)
    model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)
    x, y = torch.randn(batch, *shape, device="cuda"), torch.randint(classes, (batch,), device="cuda")
    loss = nn.CrossEntropyLoss()
    times = []
    for _ in range(15):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss(model(x), y).backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    print(f"{batch / sorted(times[5:])[5]:.0f}")


main()
