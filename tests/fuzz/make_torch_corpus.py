"""Writes the sound inputs of corpus/torch with PyTorch: python3 tests/fuzz/make_torch_corpus.py

test_torch_file.c knows what they hold. The unsound ones were made by hand or found by fuzzing."""
import collections
import os

import torch

folder = os.path.join(os.path.dirname(__file__), "corpus", "torch")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool]


def save(name, value, **options):
    torch.save(value, os.path.join(folder, name), **options)


def tensors():
    row = torch.arange(12.0).reshape(3, 4)
    return collections.OrderedDict([
        ("whole", row), ("transposed", row.t()), ("part", row[1:, 1:3]), ("column", row[:, 3]),
        ("expanded", torch.tensor([7.0]).expand(2, 3)), ("scalar", torch.tensor(5)), ("empty", torch.zeros(0, 3)),
        ("module.permuted", torch.arange(24, dtype=torch.int16).reshape(2, 3, 4).permute(2, 0, 1))])


def training():
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 2.0]]))
        module.bias.fill_(3.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return module, optimizer


for legacy in False, True:
    kind = "legacy" if legacy else "zip"
    old = {"_use_new_zipfile_serialization": not legacy}
    save(f"{kind}-views", tensors(), **old)
    save(f"{kind}-dtypes", {str(d)[6:]: torch.tensor([0, 1, 3]).to(d) for d in DTYPES}, **old)
    module, optimizer = training()
    save(f"{kind}-checkpoint", {"epoch": 3, "lr": 0.1, "state_dict": module.state_dict(),
                                "optimizer": optimizer.state_dict(), "none": None, "size": module.weight.shape}, **old)
    save(f"{kind}-parameters", {"model": {"weight": module.weight, "bias": module.bias}}, **old)
    save(f"{kind}-protocol-4", {"model_state_dict": module.state_dict()}, pickle_protocol=4, **old)
