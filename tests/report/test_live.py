#!/usr/bin/env python3
"""test_live.py PROGRAM: what a run shows on terminals of several sizes. Ends with "N passed, N failed, N skipped"."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios

TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|([\r\n])|([ -~])")


class Screen:
    """As much of a terminal as the program uses; every state of it in which a view was complete is kept."""

    def __init__(self, columns):
        self.columns, self.lines, self.row, self.column = columns, [""], 0, 0
        self.colours, self.states = 0, []

    def feed(self, text):
        at = 0
        while at < len(text):
            token = TOKEN.match(text, at)
            assert token, f"unknown: {text[at:at + 20]!r}"
            at = token.end()
            number, command, control, letter = token.groups()
            if letter:
                if re.match(r"epoch \d+  t", self.lines[self.row]) and self.column == self.columns - 1:
                    continue  # what is said of an epoch stays, and may wrap
                assert self.column < self.columns - 1, f"a line wraps: {self.lines[self.row]!r}"
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[:self.column] + letter + line[self.column + 1:]
                self.column += 1
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif command == "A":
                self.row -= int(number or 1)
                assert self.row >= 0, "above the screen"
            elif command == "K":
                self.lines[self.row] = self.lines[self.row][:self.column]
            elif command == "J":
                self.lines[self.row] = self.lines[self.row][:self.column]
                del self.lines[self.row + 1:]
                self.states.append(list(self.lines))
            elif command == "m":
                self.colours += 1
            else:
                raise AssertionError(f"unknown command {command}")


def watch(program, columns, rows, devices, **variables):
    """Returns the screen after a run, and how many devices it had."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **variables}
    if "NO_COLOR" not in variables:
        environment.pop("NO_COLOR", None)
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen(
            [program, "train", "--device", "cpu", "--logical-devices", str(devices), "--threads-per-device", "1",
             "--model", "linear", "--data", "synthetic:600", "--batch-size", "64", "--n-epoch", "3",
             "--model-dir", folder + "/model"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave,
            env=environment)
        os.close(slave)
        output = b""
        while True:
            try:
                more = os.read(master, 1 << 16)
            except OSError:
                break
            if not more:
                break
            output += more
        os.close(master)
        assert run.wait(60) == 0, output[-300:]
    return output.decode("ascii")


def view(program, columns, rows, devices, **variables):
    output = watch(program, columns, rows, devices, **variables)
    # The table before the first step is as wide as its texts are.
    first = output.index("\repoch")
    screen = Screen(columns)
    screen.feed(output[:first].count("\n") * "\n")
    screen.feed(output[first:])
    assert screen.states, "no view was drawn"
    return screen


def lines_with(state, text):
    return [line for line in state if text in line]


def wide(program):
    screen = view(program, 100, 30, 3)
    for state in screen.states:
        assert lines_with(state, "samples/s  ETA"), state
        for k in range(3):
            line = lines_with(state, f"cpu:{k} ")[-1]
            assert re.fullmatch(r"cpu:\d +\[[#.]{20}\] +\d+ % busy  [\d.]+ [kMG]?B of memory", line), line
    assert screen.colours > 0, "no colour"
    ended = [line for line in screen.lines if line]
    assert len(lines_with(ended, "training loss")) == 3 and not lines_with(ended, "% busy"), ended
    assert not lines_with(ended, "ETA"), ended


def without_colour(program):
    assert view(program, 100, 30, 2, NO_COLOR="1").colours == 0, "colour in spite of NO_COLOR"
    assert view(program, 100, 30, 2, NO_COLOR="").colours > 0, "an empty NO_COLOR says nothing"


def narrow(program):
    for columns in (20, 40, 59, 60, 80):
        for state in view(program, columns, 24, 2).states:
            assert lines_with(state, "cpu:0") and lines_with(state, "cpu:1") and lines_with(state, "epoch"), state


def low(program):
    for rows, lines in ((2, 0), (3, 0), (4, 1), (30, 7)):
        state = view(program, 100, rows, 12).states[-1]
        assert len(lines_with(state, "% busy")) == lines, (rows, state)
        assert bool(lines_with(state, "more: busy")) == (rows > 2), (rows, state)


def no_terminal(program):
    output = watch(program, 100, 30, 2, TERM="dumb")
    assert "\x1b" not in output and "batch 8/8" in output, output
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([program, "train", "--model", "linear", "--data", "synthetic:100", "--n-epoch", "1",
                              "--model-dir", folder + "/model"], capture_output=True, check=True)
    assert b"\x1b" not in run.stderr and b"\r" not in run.stderr and b"batch " in run.stderr, run.stderr


failed, tests = 0, (wide, without_colour, narrow, low, no_terminal)
for test in tests:
    try:
        test(os.path.abspath(sys.argv[1]))
    except (AssertionError, IndexError, ValueError) as failure:
        failed += 1
        print(f"FAILED {test.__name__}: {failure}")
print(f"{len(tests) - failed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
