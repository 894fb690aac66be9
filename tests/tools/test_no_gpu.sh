#!/bin/bash
# test_no_gpu.sh PROGRAM: a program with a real CUDA backend on a machine without a GPU falls back, or says why not.
set -u
program=$(realpath "$1") || exit 2
gpu_check=$(realpath "$(dirname "$0")/gpu_check.sh") || exit 2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 2
bad=0
run=(train --model mlp --hidden 8 --data synthetic:16 --n-epoch 1)
expect() { # expect STATUS TEXT OPTION...
    local status=$1 text=$2 got out
    shift 2
    out=$("$program" "${run[@]}" "$@" 2>&1)
    got=$?
    if [ "$got" -ne "$status" ] || [[ $out != *"$text"* ]]; then
        echo "FAILED: $* gave exit $got (want $status), without '$text':"
        echo "$out" | tail -n 5
        bad=1
    fi
}
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    expect 0 'using CUDA devices' --device auto --model-dir a
else
    expect 0 'using CPU devices: no usable GPU' --device auto --model-dir a
    expect 1 'dptrain: error: CUDA is not available: no usable GPU' --device cuda --model-dir b
    out=$("$gpu_check" 2>&1)
    status=$?
    if [ "$status" -ne 1 ] || [[ $out != 'gpu-check: there is no NVIDIA GPU here'* || $out == *$'\n'* ]]; then
        echo "FAILED: gpu-check gave exit $status (want 1) or not one line: $out"
        bad=1
    fi
fi
mkdir alone && cp "$program" alone/
program=$tmp/alone/$(basename "$program")
expect 0 'using CPU devices: no CUDA backend' --device auto --model-dir c
expect 1 'CUDA is not available: no CUDA backend' --device cuda --model-dir d
[ $bad -eq 0 ] && echo 'without a GPU: all as expected'
exit $bad
