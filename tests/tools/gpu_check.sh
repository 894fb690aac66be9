#!/bin/bash
# gpu_check.sh [--emulated]: what only a GPU can show, on the GPUs of this machine: the backend's own tests, every
# operation against float64, the engine's tests, and the runs computed with PyTorch by number of devices (logical ones,
# so one GPU will do).
# Ends with the line "N passed, N failed, N skipped"; exit 0 only if something passed and nothing failed. Without a GPU,
# or without what the CUDA backend is built from, it says so in one line; exit 1.
#
# --emulated runs the same steps on the emulation (DPTRAIN_EMULATED_GPUS, 1 unless it is set).
set -u
cd "$(dirname "$0")/../.." || exit 2
MAKE=${MAKE:-make}
PYTHON=${PYTHON:-python3}
base=${BUILD:-build}
logs=$base/logs/gpu
emulated=
[ "${1:-}" != --emulated ] || emulated=_emulated
unset DPTRAIN_LOGICAL_DEVICES
. tests/tools/steps.sh

refuse() {
    echo "gpu-check: $1" >&2
    exit 1
}

if [ -n "$emulated" ]; then
    export DPTRAIN_EMULATED_GPUS=${DPTRAIN_EMULATED_GPUS:-1}
    program=$base/emulated/dptrain
    targets=(emulated)
else
    nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ] ||
        refuse 'there is no NVIDIA GPU here (no nvidia-smi that lists one, no /dev/nvidia0), so nothing was checked'
    report=$("$MAKE" --no-print-directory BUILD="$base" cuda-report)
    [[ $report == 'CUDA: yes'* ]] || refuse "the CUDA backend cannot be built: ${report#CUDA: no }"
    program=$base/dptrain
    targets=(all)
fi
mkdir -p "$logs" || exit 1
export CK_TIMEOUT_MULTIPLIER=5

task 'build' 1800 "$MAKE" -j"$(nproc)" --no-print-directory BUILD="$base" "${targets[@]}" \
    "$base/tests/test_ops_cuda$emulated" "$base/tests/test_backend_cuda$emulated" \
    "${program%/*}/"{test_engine,test_engine_backend,test_train} || {
    closing
    exit 1
}
"$program" devices --device cuda 2>"$logs/devices.err" || refuse "$(sed 's/^dptrain: error: //' "$logs/devices.err")"

# by_devices N: the cases of so many devices.
by_devices() {
    local all=() prefix path
    for prefix in ${built//,/ }; do
        for path in tests/parity/cases/"$prefix"*"$1"dev*/; do
            [ ! -e "$path" ] || all+=("$(basename "$path")")
        done
    done
    (IFS=, && echo "${all[*]}")
}

tests 'backend' 300 "$base/tests/test_backend_cuda$emulated"
tests 'operations' 900 "$base/tests/test_ops_cuda$emulated"
tests 'engine' 600 "${program%/*}/test_engine" cuda
tests 'engine and backend' 600 "${program%/*}/test_engine_backend" cuda
tests 'training' 300 "${program%/*}/test_train" cuda
sizes=(--batch-sizes '32,256' --steps 10)
[ -z "$emulated" ] || sizes=(--model mlp --hidden 16 --batch-sizes 8 --steps 2) # the emulation takes its time
task 'bench' 300 "$program" bench --device cuda --logical-devices 2 "${sizes[@]}"
for devices in 1 2 3 4 8; do
    wanted=$(by_devices "$devices")
    if [ -z "$wanted" ]; then
        skip "parity, $devices logical devices" 'there is no such case'
    elif ! "$PYTHON" -c 'import json' 2>/dev/null; then
        skip "parity, $devices logical devices" "$PYTHON is missing"
    else
        tests "parity, $devices logical devices" 600 "$PYTHON" tests/parity/parity.py --device cuda --only "$wanted" \
            "$program" tests/parity/cases
    fi
done
echo
closing
