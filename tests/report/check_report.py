#!/usr/bin/env python3
"""check_report.py [--browser] PAGE LOG: is PAGE a report of LOG as it should be?

One file under 1 MiB that names nothing outside of itself; its figures are the log's, and its bars are as long as they
say. With --browser: in a real browser nothing is fetched, nothing is said on the
console, the figures are those that one sees, and the page is not blank and not wider than a screen: wide, narrow, light,
dark, printed.
"""
import html.parser
import json
import math
import sys

PHASES = ("wait", "scatter", "broadcast", "forward", "gather", "loss", "backward", "reduce", "optimizer")
PURPOSES = ("parameters", "gradients", "optimizer", "buffers", "activations", "inputs", "gathered_outputs", "loss",
            "staging", "workspace")
VOID = ("meta", "link", "br")


class Page(html.parser.HTMLParser):
    """Elements in order: their section, attributes and text; tags must nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.references = [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        section = next((e["attributes"].get("id") for e in reversed(self.open) if e["tag"] == "section"), None)
        element = {"tag": tag, "attributes": attributes, "text": "", "section": section}
        self.elements.append(element)
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            if name in attributes:
                self.references.append(attributes[name])
        for value in attributes.values():
            if value and "url(" in value:
                self.references.append(value.split("url(")[1].split(")")[0])
        assert tag not in ("script", "iframe", "object", "embed", "base", "form", "img"), tag
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        element = self.open.pop()
        assert element["tag"] == tag, f"<{element['tag']}> is closed by </{tag}>"

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def values(self, name, section=None):
        return [float(e["attributes"]["data-" + name]) for e in self.elements
                if "data-" + name in e["attributes"] and (section is None or e["section"] == section)]


def same(page, log, what):
    assert len(page) == len(log), f"{what}: {page} on the page, {log} in the log"
    for a, b in zip(page, log):
        assert math.isclose(a, b, rel_tol=1e-8, abs_tol=1e-12), f"{what}: {a} on the page, {b} in the log"


def events_of(path):
    events = []
    with open(path, encoding="utf-8") as file:
        for line in file.read().split("\n")[:-1]:  # a torn last line is none
            if not line:
                continue
            event = json.loads(line)
            if event["event"] == "start" and "resumed" not in event:
                events = []
            if event["event"] == "start":
                events = [e for e in events if e["event"] not in ("device", "end")]
            events.append(event)
    return events


def check_figures(page, events):
    def of(kind):
        return [event for event in events if event["event"] == kind]

    epochs, devices, batches = of("epoch"), of("device"), of("batch")
    for key, name in (("train_loss", "train-loss"), ("valid_loss", "valid-loss"), ("valid_accuracy", "valid-accuracy"),
                      ("seconds", "epoch-seconds"), ("samples_per_second", "rate")):
        if len(epochs) <= 100:
            same(page.values(name, "epochs"), [e[key] for e in epochs if e.get(key) is not None], key)
    if epochs and epochs[-1]["train_loss"] is not None:
        same(page.values("train-loss")[:1], [epochs[-1]["train_loss"]], "training loss at the top")
    same(page.values("samples", "devices"), [d["samples"] for d in devices], "samples")
    same(page.values("busy-fraction", "devices"), [min(d["busy_fraction"], 1) for d in devices], "busy fractions")
    same(page.values("peak-total-bytes", "devices"), [d["peak_total_bytes"] for d in devices], "peaks")
    for purpose in PURPOSES:
        logged = [d["peak_bytes"][purpose] for d in devices]
        same(page.values("bytes-" + purpose), logged if any(logged) else [], purpose)
    counted = batches[1:] or batches
    if counted:
        means = [sum(b["phase_ms"][phase] for b in counted) / len(counted) for phase in PHASES]
        if sum(means) > 0:
            for a, b in zip(page.values("phase-ms", "phases"), means):
                assert math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9), f"phases: {a} on the page, {b} from the log"
    chunks = of("start")[-1]["chunk_sizes"]
    same(page.values("chunk", "devices"), [(chunks + [0] * 64)[i] for i in range(len(devices))], "split")
    for end in of("end"):
        same(page.values("steps"), [end["steps"]], "steps")
    same(page.values("timeline-ms"), [d["timeline"][-1]["end_ms"] if d["timeline"] else 0 for d in devices]
         if any(d.get("timeline") for d in devices) else [], "timelines")
    check_bars(page, devices)


def check_bars(page, devices):
    """The lengths of the rectangles are those of the figures."""
    def widths(section):
        return [float(e["attributes"]["width"].rstrip("%")) for e in page.elements
                if e["tag"] == "rect" and e["section"] == section and e["attributes"]["width"].endswith("%")]

    shares = [100 * min(d["busy_fraction"], 1) for d in devices]
    assert len(shares) == len(widths("busy")) and all(abs(a - b) < 0.01 for a, b in zip(widths("busy"), shares)), "busy"
    sums = [sum(d["peak_bytes"].values()) for d in devices]
    drawn = [100 * n / max(sums) for d in devices for n in (d["peak_bytes"][p] for p in PURPOSES)
             if sums and n / max(sums) > 0.0005] if devices else []
    got = widths("memory")
    assert len(got) == len(drawn) and all(abs(a - b) < 0.01 for a, b in zip(got, drawn)), "memory"
    ends = [span["end_ms"] for d in devices for span in d.get("timeline", [])]
    if ends:
        length = max(ends)
        spans = [100 * (s["end_ms"] - s["begin_ms"]) / length for d in devices for s in d["timeline"]]
        drawn = widths("timeline")
        assert len(drawn) <= len(spans) and drawn, "timeline"
        assert abs(sum(drawn) - sum(spans)) < 0.05 * len(spans) + 1, f"timeline: {sum(drawn)} % drawn of {sum(spans)}"


def check_file(path, log):
    with open(path, "rb") as file:
        data = file.read()
    assert len(data) < 1 << 20, f"{len(data)} bytes"
    text = data.decode("utf-8")
    page = Page(text)
    ids = {e["attributes"]["id"] for e in page.elements if "id" in e["attributes"]}
    for reference in page.references:
        assert reference == "data:," or reference[0] == "#" and reference[1:] in ids, f"refers to {reference}"
    style = next(e["text"] for e in page.elements if e["tag"] == "style")
    assert "url(" not in style and "@import" not in style, "the style refers to something"
    assert "prefers-color-scheme:dark" in style and "@media print" in style
    check_figures(page, events_of(log))
    return page


def check_in_browser(path, page):
    import browser
    b = browser.Browser("chromium")
    try:
        b.open(path)
        seen = b.evaluate("[...document.querySelectorAll('[data-samples],[data-busy-fraction],[data-peak-total-bytes],"
                          "[data-train-loss],[data-valid-loss],[data-phase-ms],dd')]"
                          ".map(e => e.getBoundingClientRect().height > 0 ? e.innerText.trim() : '')")
        wanted = [e["text"].strip() for e in page.elements if e["tag"] == "dd" or any(
            "data-" + n in e["attributes"] for n in
            ("samples", "busy-fraction", "peak-total-bytes", "train-loss", "valid-loss", "phase-ms"))]
        assert seen == wanted, f"seen: {seen}, in the file: {wanted}"
        for width, dark, media in ((1280, False, ""), (1280, True, ""), (360, False, ""), (360, True, ""),
                                   (800, False, "print")):
            rows, _ = b.look(width, dark, media)
            name = f"{width} pixels{', dark' if dark else ''}{', ' + media if media else ''}"
            light = sum(map(sum, rows[0])) / len(rows[0]) / 3
            assert light < 60 if dark else light > 200, f"{name}: the ground is {light:.0f}"
            colours = {pixel for row in rows for pixel in row}
            assert len(colours) > 100, f"{name}: {len(colours)} colours"
            filled = sum(len(set(row)) > 1 for row in rows) / len(rows)
            assert filled > 0.3, f"{name}: {filled:.0%} of the rows hold something"
            overflow = b.evaluate("document.documentElement.scrollWidth")
            assert overflow <= width, f"{name}: the page is {overflow} wide"
        fetched = [e["params"]["request"]["url"] for e in b.events if e.get("method") == "Network.requestWillBeSent"]
        fetched = [url for url in fetched if not url.startswith("data:")]
        assert len(fetched) == 1 and fetched[0].startswith("file:///"), f"fetched: {fetched}"
        said = [e for e in b.events if e.get("method") in
                ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]
        assert not said, f"the console says: {said}"
    finally:
        b.close()


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a not in ("--browser", "")]
    try:
        parsed = check_file(*arguments)
        if "--browser" in sys.argv:
            check_in_browser(arguments[0], parsed)
    except (AssertionError, KeyError, IndexError, ValueError, OSError, RuntimeError, EOFError, StopIteration) as failure:
        sys.exit(f"check_report.py: {type(failure).__name__}: {failure}")
