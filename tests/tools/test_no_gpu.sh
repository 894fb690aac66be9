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
# refused TEXT: make gpu-check says so in one line, and leaves one log that says it.
refused() {
    local out status
    rm -rf results
    mkdir results && echo old >results/table.txt
    out=$(RESULTS=$PWD/results BUILD=$PWD/built "$gpu_check" 2>&1)
    status=$?
    if [ "$status" -ne 1 ] || [[ $out != "$1"* || $out == *$'\n'* ]]; then
        echo "FAILED: gpu-check gave exit $status (want 1) or not one line: $out"
        bad=1
    fi
    if [ "$(ls results)" != refused.log ] || ! grep -q "^$1" results/refused.log; then
        echo "FAILED: gpu-check left $(ls results) for its results, or another reason than '$1'"
        bad=1
    fi
}
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    expect 0 'using CUDA devices' --device auto --model-dir a
else
    expect 0 'using CPU devices: no usable GPU' --device auto --model-dir a
    expect 1 'dptrain: error: CUDA is not available: no usable GPU' --device cuda --model-dir b
    refused 'gpu-check: there is no NVIDIA GPU here'
    # And with a GPU, but nothing to build for it with.
    mkdir fake
    printf '#!/bin/sh\necho "GPU 0: of a test"\n' >fake/nvidia-smi
    chmod +x fake/nvidia-smi
    PATH=$PWD/fake:$PATH CUDA_HOME=$PWD/nothing refused 'gpu-check: the CUDA backend cannot be built: '
fi
mkdir alone && cp "$program" alone/
program=$tmp/alone/$(basename "$program")
expect 0 'using CPU devices: no CUDA backend' --device auto --model-dir c
expect 1 'CUDA is not available: no CUDA backend' --device cuda --model-dir d
[ $bad -eq 0 ] && echo 'without a GPU: all as expected'
exit $bad
