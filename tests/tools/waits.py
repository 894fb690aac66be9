"""waits.py PROGRAM [--thin]: every wait for CUDA's streams and events left out in turn, each to be missed.

PROGRAM is test_handovers beside an emulated libdptrain_cuda.so, both built with ThreadSanitizer (with -g, and without
tail calls: -O1). A first run with all waits lists who waits (DPTRAIN_EMULATED_WAITS). Then for each such place in the
sources the tests run without that wait (DPTRAIN_EMULATED_SKIP_WAIT): ThreadSanitizer must report a race, the emulation
a mistake, a test fail, or a result have other bits. A wait whose lack is not noticed is in order if the comment right
above it says which other order already implies it, in a sentence that begins with "Implied:"; and such a sentence above a
wait that is missed is wrong. All of these are left out together, too, as two could imply each other. Waits in the
sources that no test comes to are failures.

With --thin one seed, and a few of the waits. Ends with the table and the line
"N passed, N failed, 0 skipped"; exit 0 only if something passed and nothing failed.
"""
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile

WAITS = re.compile(r"\b(dp_await|(dp_|dp_cuda_)?stream_(wait|synchronize)|cuda(Stream|Event|Device)Synchronize"
                   r"|cudaStreamWaitEvent)\(")
# Functions that wait on behalf of their callers.
WRAPPERS = {"dp_await", "dp_stream_wait", "dp_stream_synchronize", "dp_cuda_stream_wait", "dp_cuda_stream_synchronize"}
DEFINITION = re.compile(r"^[a-z][\w *]*?\b(\w+)\(")
CASES = ["mlp", "rare"]
SEEDS, THIN_SEEDS = [1, 2, 3], [1]
THIN_FUNCTIONS = {"start_step", "locate_sources"}
SECONDS = 600 # for one run


class Wait:
    """A wait in the sources: `first` to `last` are the lines of its statement."""

    def __init__(self, path, function, first, last, implied):
        self.path, self.function, self.first, self.last, self.implied = path, function, first, last, implied
        self.places = set()

    def __str__(self):
        return f"{self.path}:{self.first} {self.function}"


def comment_above(lines, first):
    """The words of the comment right before the statement, with its conditions, on line `first` (from 1)."""
    at = first - 2
    while re.match(r"\s*(if|for|while|else)\b", lines[at]):
        at -= 1
    if not lines[at].rstrip().endswith("*/"):
        return ""
    end = at
    while at > 0 and "/*" not in lines[at]:
        at -= 1
    words = " ".join(lines[at:end + 1]).replace("/*", " ").replace("*/", " ").split()
    return " ".join(word for word in words if word != "*")


def waits_in(path):
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    function = ""
    for number, line in enumerate(lines, 1):
        definition = DEFINITION.match(line)
        if definition:
            function = definition.group(1)
        elif WAITS.search(line) and function not in WRAPPERS:
            last = number
            while ";" not in lines[last - 1]:
                last += 1
            above = comment_above(lines, number)
            implied = above[above.index("Implied:"):] if "Implied:" in above else ""
            yield Wait(path, function, number, last, implied)


def modules_of(program):
    library = os.path.join(os.path.dirname(program), "libdptrain_cuda.so")
    return {os.path.basename(path): path for path in (program, library)}


def locate(modules, places):
    """{place: [(function, path, line), ...]}, innermost first where functions were inlined."""
    found = {}
    for name, module in modules.items():
        mine = [place for place in places if place.startswith(name + "+")]
        if not mine:
            continue
        command = ["addr2line", "-a", "-f", "-i", "-e", module] + ["0x" + place.split("+")[1] for place in mine]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
        at = -1
        for function, where in zip(lines, lines[1:]):
            if function.startswith("0x"):
                at += 1
                found[mine[at]] = []
            elif not where.startswith("0x") and re.match(r".*:[\d?]", where):
                path, line = where.split(" ")[0].rsplit(":", 1)
                found[mine[at]].append((function, "/" + path, int(line) if line.isdigit() else 0))
    return found


def attribute(waits, chains, modules):
    """Gives each wait its places; returns the callers that belong to none."""
    located = locate(modules, {place for chain in chains for place in chain})
    strange = set()
    for chain in chains:
        frames = [(place, frame) for place in chain for frame in located.get(place, [])]
        place, frame = next((p, f) for p, f in frames if f[0] not in WRAPPERS)
        if "/tests/" in frame[1]: # a test's own
            continue
        mine = [w for w in waits if frame[1].endswith("/" + w.path) and w.first <= frame[2] <= w.last]
        if mine:
            mine[0].places.add(place)
        else:
            strange.add(f"{frame[1]}:{frame[2]} {frame[0]}")
    return strange


def run(program, case, seed, bits, **more):
    """What a run printed; None if it was still running at the end of its time."""
    environment = dict(os.environ, CK_RUN_CASE=case, DPTRAIN_EMULATED_GPUS="3", DPTRAIN_EMULATED_SEED=str(seed),
                       DPTRAIN_EMULATED_DELAY_US="200", DPTRAIN_TEST_BITS=bits, **more)
    try:
        done = subprocess.run([program, "cuda"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.decode("utf-8", "replace") + f"\nexit {done.returncode}"


def read_lines(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


def verdict(output, bits, expected):
    """How a missing wait was noticed; empty: it was not."""
    if output is None:
        return "hang"
    race = re.search(r"SUMMARY: ThreadSanitizer: (.*)", output)
    if race:
        return "race: " + re.sub(r"(\S*/)?(\S+:\d+)", r"\2", race.group(1)).replace("data race ", "")
    checked = re.search(r"CUDA emulation: error: (.*)", output)
    if checked:
        return "checker: " + checked.group(1)
    failed = re.search(r":[FE]:[^:]*:([^:]*):\d+: (.*)", output)
    if failed:
        return f"test: {failed.group(1)}: {failed.group(2)}"
    if not output.endswith("\nexit 0"):
        return output.split("\n")[-1]
    return "" if sorted(bits) == sorted(expected) else "other bits"


def missed(program, waits, seed, directory, expected):
    """How the lack of these waits was noticed under one seed."""
    places = sorted(place for wait in waits for place in wait.places)
    for case in CASES:
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
            bits = file.name
        output = run(program, case, seed, bits, DPTRAIN_EMULATED_SKIP_WAIT=",".join(places))
        how = verdict(output, read_lines(bits), expected[case])
        if how:
            return how
    return ""


def reference(program, directory, failures):
    """The chains of callers that wait, and what the runs with all waits came to."""
    chains, expected = os.path.join(directory, "chains"), {}
    for case in CASES:
        bits = os.path.join(directory, "bits-" + case)
        output = run(program, case, 1, bits, DPTRAIN_EMULATED_WAITS=chains)
        expected[case] = read_lines(bits)
        how = verdict(output, expected[case], expected[case])
        if how:
            failures.append(f"with every wait: {case}: {how}")
    return [line.split() for line in read_lines(chains)], expected


def judge(wait, hows):
    """(passed, what the table says)."""
    noticed = [how for how in hows if how]
    text = f"{len(noticed)} of {len(hows)}, {noticed[0]}" if noticed else "not noticed"
    if wait.implied and not noticed:
        return True, wait.implied
    if wait.implied:
        return False, f"is said to be implied, but: {text}"
    return len(noticed) == len(hows), text


def main():
    program, thin = os.path.abspath(sys.argv[1]), "--thin" in sys.argv[2:]
    seeds = THIN_SEEDS if thin else SEEDS
    failures = []
    waits = [wait for path in sorted(glob.glob("src/parallel/*.c") + glob.glob("cuda/*.c")) for wait in waits_in(path)]
    with tempfile.TemporaryDirectory() as directory:
        chains, expected = reference(program, directory, failures)
        failures += [f"{place}: waits, and is not among the waits of the sources"
                     for place in sorted(attribute(waits, chains, modules_of(program)))]
        failures += [f"{wait}: no test comes to this wait" for wait in waits if not wait.places]
        left_out = [wait for wait in waits if wait.places and (not thin or wait.function in THIN_FUNCTIONS)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            sets = [[wait] for wait in left_out] + [[wait for wait in left_out if wait.implied]]
            jobs = [[pool.submit(missed, program, waits, seed, directory, expected) for seed in seeds]
                    for waits in sets if waits]
            hows = [[job.result() for job in seeds_of] for seeds_of in jobs]
    rows = [(wait, *judge(wait, how)) for wait, how in zip(left_out, hows)]
    if len(hows) > len(left_out):
        noticed = [how for how in hows[-1] if how]
        rows.append(("all that are implied, together", not noticed, noticed[0] if noticed else "not noticed"))
    for what, good, text in rows:
        print(f"{'ok  ' if good else 'FAIL'} {str(what):56s} {text}")
    for failure in failures:
        print("FAIL", failure)
    bad = len(failures) + sum(not good for _, good, _ in rows)
    print(f"{sum(good for _, good, _ in rows)} passed, {bad} failed, 0 skipped")
    return 0 if rows and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
