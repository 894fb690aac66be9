#!/usr/bin/env python3
"""strange_logs.py DIRECTORY: writes logs that no short run leaves: NAME.good.jsonl makes a page, NAME.bad.jsonl an error."""
import json
import os
import random
import sys

PHASES = ("wait", "scatter", "broadcast", "forward", "gather", "loss", "backward", "reduce", "optimizer")
PURPOSES = ("parameters", "gradients", "optimizer", "buffers", "activations", "inputs", "gathered_outputs", "loss",
            "staging", "workspace")


def start(devices=2, **more):
    names = [f"cpu:{k}" for k in range(devices)]
    return {"event": "start", "version": "0.1.0", "command": ["dptrain", "train"], "model": "lenet", "parameters": 10,
            "data": "synthetic", "samples": 100, "devices": names, "output_device": "cpu:0", "loss": "cross_entropy",
            "loss_mode": "gather", "batch_size": 64, "accumulation_steps": 1, "epochs": 3, "batches_per_epoch": 4,
            "optimizer": "sgd", "lr": 0.1, "seed": 0, "split": "chunk", "chunk_sizes": [32] * devices, **more}


def batch(epoch, index, loss=1.0, devices=2):
    return {"event": "batch", "epoch": epoch, "batch": index, "step": index, "samples": 64,
            "chunk_sizes": [32] * devices, "loss": loss, "device_losses": [loss] * devices, "lr": 0.1,
            "phase_ms": {phase: 0.1 * i + index % 7 for i, phase in enumerate(PHASES)}}


def epoch(number, **more):
    return {"event": "epoch", "epoch": number, "train_loss": 1 / (number + 1), "seconds": 70.5,
            "samples_per_second": 1e5, "valid_loss": 1.1 / (number + 1), "valid_accuracy": 0.5, **more}


def device(k, spans=4):
    timeline = [{"phase": PHASES[i % 9], "begin_ms": i, "end_ms": i + 1, "busy": i % 3 != 0} for i in range(spans)]
    peaks = {purpose: (i + 1) * 10**6 * (k + 1) for i, purpose in enumerate(PURPOSES)}
    return {"event": "device", "device": f"cpu:{k}", "samples": 1000 - k, "steps": 12, "busy_fraction": 0.9 - 0.01 * k,
            "peak_bytes": peaks, "peak_total_bytes": sum(peaks.values()), "timeline": timeline}


END = {"event": "end", "status": "completed", "steps": 12, "seconds": 4000.5}
random.seed(1)
many = [start(64), *(batch(e, b, 2 + random.random(), 64) for e in range(500) for b in range(40)),
        *(epoch(e) for e in range(500)), *(device(k, 511) for k in range(64)), END]
masks = [start(), *(epoch(e, valid_accuracy=None, valid_iou=0.1 * e, valid_f1=0.15 * e) for e in range(3)), END]
hostile = "<script>alert(1)</script>\"'&\u2028\x07<img src=http://example.com/x.png>"
good = {
    "start-alone": [start()],
    "one-batch": [start(), batch(0, 0)],
    "not-finite": [start(), batch(0, 0), batch(0, 1, None), epoch(0, train_loss=None, valid_loss=None)],
    "none-finite": [start(), batch(0, 0, None), batch(0, 1, None)],
    "resumed": [start(), batch(0, 0), device(0), device(1), {**END, "status": "interrupted"},
                start(resumed={"epoch": 0, "batch": 1, "step": 1}), batch(0, 1), epoch(0), device(0), device(1), END],
    "twice": [start(), batch(0, 0), epoch(0), device(0), END, start(1), batch(0, 0), device(0), END],
    "same-loss": [start(), batch(0, 0, 0), batch(0, 1, 0), epoch(0, train_loss=0, valid_loss=0), epoch(1, train_loss=0)],
    "huge-values": [start(lr=1e300), batch(0, 0, 1e300), batch(0, 1, -1e300), epoch(0, train_loss=1e300), END],
    "late-epoch": [start(), batch(10**9, 0), batch(10**9, 1), epoch(10**9)],
    "many": many,
    "masks": masks,
    "hostile": [start(model=hostile, data=hostile, command=["dptrain", hostile, "x" * 200000]), batch(0, 0), epoch(0),
                device(0), device(1), END],
    "later-version": [start(news={"a": [1]}), {"event": "weather"}, batch(0, 0), epoch(0), END],
    "another-shape": [{**start(), "devices": "cpu", "chunk_sizes": {}, "model": [1], "lr": "fast", "batch_size": -5, "command": 7},
                      {"event": "batch", "epoch": "x"}, {"event": "batch", "epoch": 0, "batch": 0, "phase_ms": [1]},
                      {"event": "device", "device": 5, "timeline": "x", "peak_bytes": [], "busy_fraction": 1e9},
                      {"event": "device", "timeline": [5, {"phase": "nap"}, {"phase": "wait", "begin_ms": 5, "end_ms": 1}]},
                      {"event": "end", "status": None}],
}
lines = {name: "".join(json.dumps(event) + "\n" for event in events) for name, events in good.items()}
lines["torn"] = lines["resumed"] + json.dumps(batch(0, 2))[:40]
lines["empty-lines"] = "\n" + lines["one-batch"] + "\n\n"
bad = {
    "empty": "",
    "torn-first": json.dumps(start())[:30],
    "not-json": lines["one-batch"] + "what is this\n" + lines["one-batch"],
    "not-an-object": lines["one-batch"] + "[1, 2]\n",
    "no-start": json.dumps(batch(0, 0)) + "\n",
    "deep": lines["one-batch"] + "[" * 100000 + "\n",
    "zeros": "\0" * 5000 + "\n",
    "utf16": lines["one-batch"].encode("utf-16").decode("latin-1"),
}
for kind, all_ in (("good", lines), ("bad", bad)):
    for name, text in all_.items():
        with open(os.path.join(sys.argv[1], f"{name}.{kind}.jsonl"), "w", encoding="latin-1" if name == "utf16" else "utf-8",
                  newline="") as file:
            file.write(text)
