#!/usr/bin/env python3
"""check_trace.py FILE LOSS_MODE DEVICE...: is FILE a trace that Perfetto shows as meant?

Valid JSON; every track that a run on these devices (the primary first) has; spans of a track nest and precede those
within them; every phase appears; every arrow begins and ends in a span, and never ends before it begins.
"""
import collections
import json
import sys

EXACT = 1.5e-3  # microseconds: times have three decimals


def check(path, mode, devices):
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    tracks, spans, arrows = {}, collections.defaultdict(list), collections.defaultdict(list)
    for event in events:
        place = (event["pid"], event["tid"])
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                tracks[place] = event["args"]["name"]
            continue
        assert place in tracks, f"an event on a track without a name: {event}"
        if event["ph"] == "X":
            spans[tracks[place]].append((event["ts"], event["ts"] + event["dur"], event["name"], event["args"]))
        elif event["ph"] in "sf":
            arrows[event["id"]].append((event["ph"], tracks[place], event["ts"]))
        else:
            raise AssertionError(f"an event of another kind: {event}")
    assert len(set(tracks.values())) == len(tracks), "two tracks of one name"
    wanted = {"coordinator", "loader"}
    for device in devices:
        wanted |= {f"{device} {what}" for what in ("thread", "compute stream", "copy stream", "input stream")}
    assert wanted <= set(tracks.values()), f"missing: {wanted - set(tracks.values())}"

    for track, list_ in spans.items():
        open_, last = [], 0
        for begin, end, name, _ in list_:
            assert begin + EXACT >= last, f"{track}: {name} at {begin} after one at {last}"
            last = begin
            while open_ and open_[-1] <= begin + EXACT and end > open_[-1] + EXACT:
                open_.pop()
            assert not open_ or end <= open_[-1] + EXACT, f"{track}: {name} at {begin} leaves the span around it"
            open_.append(end)

    check_phases(spans, mode, devices)
    check_arrows(spans, arrows, devices)
    print(f"{sum(map(len, spans.values()))} spans on {len(tracks)} tracks, {len(arrows)} arrows")


def check_phases(spans, mode, devices):
    def names(track):
        return {name for _, _, name, _ in spans[track]}

    assert {"step", "scatter", "wait for devices"} <= names("coordinator"), names("coordinator")
    assert any("read batch" in names(track) for track in spans if track.startswith("loader")), "nothing was loaded"
    for index, device in enumerate(devices):
        assert {"scatter", "broadcast", "forward", "backward"} <= names(f"{device} compute stream"), device
        assert {"step", "scatter", "forward", "backward"} <= names(f"{device} thread"), device
        assert "bucket" in names(f"{device} compute stream"), device
        assert "scatter" in names(f"{device} input stream"), device
        copy = "reduce+optimizer" if index == 0 else "broadcast"
        assert copy in names(f"{device} copy stream"), (device, names(f"{device} copy stream"))
    everywhere = set().union(*(names(track) for track in spans))
    phases = {"scatter", "broadcast", "forward", "loss", "backward", "reduce+optimizer", "wait"}
    if len(devices) > 1 and mode == "gather":
        phases.add("gather")
    assert phases <= everywhere, f"missing: {phases - everywhere}"


def check_arrows(spans, arrows, devices):
    ends = collections.Counter()
    for id_, points in arrows.items():
        assert sorted(kind for kind, _, _ in points) == ["f", "s"], f"arrow {id_}: {points}"
        named = {}
        for kind, track, at in points:
            around = [name for begin, end, name, _ in spans[track] if begin - EXACT <= at <= end + EXACT]
            assert around, f"arrow {id_} touches no span: {points}"
            named[kind] = (track, around, at)
        assert named["s"][2] <= named["f"][2] + EXACT, f"arrow {id_} goes back in time: {points}"
        if "bucket" in named["s"][1]:
            assert "reduce+optimizer" in named["f"][1], named
            ends["bucket"] += 1
        else:
            assert "scatter" in named["s"][1] and "forward" in named["f"][1], named
            assert named["s"][0].split()[0] == named["f"][0].split()[0], named
            ends["chunk"] += 1
    assert ends["bucket"] >= len(devices) and ends["chunk"] >= len(devices), ends


if __name__ == "__main__":
    try:
        check(sys.argv[1], sys.argv[2], sys.argv[3:])
    except (AssertionError, KeyError, TypeError, ValueError, OSError) as failure:
        sys.exit(f"check_trace.py: {type(failure).__name__}: {failure}")
