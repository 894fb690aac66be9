#!/usr/bin/env python3
"""guide.py [--check] GUIDE PROGRAM: types the commands of a guide.

A block that begins with ```console holds commands, each after "$ ", and what they printed. All are run in the guide's
order, in one fresh directory, with PROGRAM as `dptrain`. Without --check the guide is rewritten with what they print
now. With it nothing is written: every command must succeed, and print what the guide says but in blocks marked
```console times, whose figures are of a machine at a moment. Two kinds of figures may differ a little, as another CPU
rounds differently: losses, and one sample more or less may be taken for right. Ends with "N passed, N failed, 0
skipped", a test being a block.
"""
import os
import re
import subprocess
import sys
import tempfile

FENCE = "```"


def commands_of(lines):
    """The commands of a block, each as its lines: a backslash at the end goes on in the next."""
    commands, more = [], False
    for line in lines:
        if more:
            commands[-1].append(line)
        elif line.startswith("$ "):
            commands.append([line])
        else:
            continue
        more = line.endswith("\\")
    return commands


def run(lines, directory, environment):
    """The block's lines anew, and whether every command succeeded."""
    out, good = [], True
    for command in commands_of(lines):
        text = "\n".join(command)[2:]
        done = subprocess.run(["bash", "-o", "pipefail", "-c", text], cwd=directory, env=environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        out += command + [line.rstrip() for line in done.stdout.splitlines()]
        if done.returncode != 0:
            print(f"exit {done.returncode}: {text}\n{done.stdout}")
            good = False
    return out, good


FIGURE = re.compile(r"(?<=accuracy )\d+\.\d(?= %)|\d+\.\d{4,}")
HELD_OUT = 150  # samples, of the guide's runs


def near(old, new):
    """A loss as near as tests/parity has it, an accuracy of HELD_OUT samples by one of them."""
    accuracy = len(old.split(".")[1]) == 1
    allowed = 100 / HELD_OUT + 0.05 if accuracy else 1e-5 + 2e-4 * abs(float(old))
    return abs(float(old) - float(new)) <= allowed


def same(old, new):
    """Equal but for the last digits of losses and one sample of an accuracy.

    >>> same(["accuracy 92.7 %"], ["accuracy 92.0 %"]), same(["accuracy 92.7 %"], ["accuracy 91.3 %"])
    (True, False)
    >>> same(["replica 0.5250"], ["replica 0.5251"]), same(["replica 0.5250"], ["replica 0.5252"])
    (True, False)
    >>> same(["0.07790162293"], ["0.07791162293"]), same(["0.07790162293"], ["0.07793162293"])
    (True, False)
    >>> same(["10.2 MB"], ["10.3 MB"]), same(["at best 3.00"], ["at best 3.01"]), same(["1.25"], ["1.2500"])
    (False, False, False)
    >>> same(["0.4333 0.5250"], ["0.4333"])
    False
    """
    old, new = "\n".join(old), "\n".join(new)
    if FIGURE.sub("#", old) != FIGURE.sub("#", new):
        return False
    return all(near(*pair) for pair in zip(FIGURE.findall(old), FIGURE.findall(new)))


def main():
    check = sys.argv[1:2] == ["--check"]
    if len(sys.argv) != 3 + check:
        sys.exit(__doc__.splitlines()[0])
    guide, program = sys.argv[1 + check:]
    with open(guide, encoding="utf-8") as file:
        lines = file.read().splitlines()
    out, passed, failed, i = [], 0, 0, 0
    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(os.path.join(directory, "bin"))
        os.symlink(os.path.realpath(program), os.path.join(directory, "bin", "dptrain"))
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("DPTRAIN", "CUDA_"))}
        environment["PATH"] = os.path.join(directory, "bin") + os.pathsep + environment["PATH"]
        environment["LC_ALL"] = "C.UTF-8"
        while i < len(lines):
            out.append(lines[i])
            i += 1
            if not out[-1].startswith(FENCE + "console"):
                continue
            end = lines.index(FENCE, i)
            new, good = run(lines[i:end], directory, environment)
            if check and good and "times" not in out[-1] and not same(lines[i:end], new):
                print("the guide says\n| " + "\n| ".join(lines[i:end]) + "\nand now it is\n| " + "\n| ".join(new))
                good = False
            passed, failed = passed + good, failed + (not good)
            out += new
            i = end
    if not check and not failed:
        with open(guide + ".new", "w", encoding="utf-8") as file:
            file.write("\n".join(out) + "\n")
        os.replace(guide + ".new", guide)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0 or passed == 0)


if __name__ == "__main__":
    main()
