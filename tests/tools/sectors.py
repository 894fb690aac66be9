#!/usr/bin/env python3
"""sectors.py SECTORS KERNELS.cu...: how well each kernel's loads and stores coalesce.

SECTORS is what programs on the checked emulation write to DPTRAIN_EMULATED_COALESCING. For each kernel the table
shows the requests of its warps, the 32-byte sectors of one request, what they would be were the bytes of its lanes
side by side, the one over the other, and, where that exceeds 1.25, the place that adds most to it. A kernel above
1.25 has to have a sentence that begins "Sectors:" in its comment; one that lacks it is named, and the exit status
is 1. So it is if nothing was counted.
"""
import collections
import re
import subprocess
import sys

LIMIT = 1.25


def read(path):
    """{kernel: {(file, offset, kind): [requests, sectors, ideal]}}"""
    kernels = collections.defaultdict(lambda: collections.defaultdict(lambda: [0, 0, 0]))
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            kernel, file, offset, kind, _, *figures = line.rstrip("\n").split("\t")
            place = kernels[re.sub(r"<.*", "", kernel)][file, offset, kind]
            for i, figure in enumerate(figures):
                place[i] += int(figure)
    return kernels


def line_of(file, offset):
    """The source line of an offset in a program, or the offset where there is no addr2line."""
    try:
        out = subprocess.run(["addr2line", "-e", file, offset], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return offset
    return re.sub(r" .*", "", out.strip().rsplit("/", 1)[-1])


def explained(sources):
    """The kernels whose comment, directly above, has a sentence that begins with "Sectors:"."""
    names = set()
    for source in sources:
        with open(source, encoding="utf-8") as file:
            text = file.read()
        for match in re.finditer(r"((?://[^\n]*\n)+)(?:template[^\n]*\n)?static __global__[^(]*\([^)]*\)\s*(\w+)", text):
            if "Sectors:" in match.group(1):
                names.add(match.group(2))
    return names


def main(path, *sources):
    kernels, reasons, missing = read(path), explained(sources), []
    if not kernels:
        print("nothing was counted")
        return 1
    print(f"{'kernel':28} {'requests':>9} {'sectors':>8} {'ideal':>6} {'ratio':>6}")
    for kernel, places in sorted(kernels.items()):
        requests, sectors, ideal = (sum(place[i] for place in places.values()) for i in range(3))
        ratio, note = sectors / ideal, ""
        if ratio > LIMIT:
            (file, offset, kind), _ = max(places.items(), key=lambda item: item[1][1] - item[1][2])
            note = f"  most at a {kind}, {line_of(file, offset)}"
            if kernel not in reasons:
                missing.append(kernel)
        print(f"{kernel:28} {requests:9} {sectors / requests:8.2f} {ideal / requests:6.2f} {ratio:6.2f}{note}")
    for kernel in missing:
        print(f"{kernel}: above {LIMIT}, and its comment gives no reason (\"Sectors: ...\")")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
