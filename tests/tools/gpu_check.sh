#!/bin/bash
# gpu_check.sh [--emulated]: what only a GPU can show, on the GPUs of this machine: the backend's own tests, every
# operation against float64, the engine's tests, the runs computed with PyTorch on 1 to 8 logical devices, two runs
# bit by bit, compute-sanitizer, each own kernel against a copy, and throughput; with several GPUs the runs and
# throughput on 2 to all of them, too.
# It needs gcc, g++, make, nvcc, cuBLAS and cuDNN, and what `make gpu-bundle` made elsewhere (in BUILD/gpu-bundle) where
# the machine lacks Jansson, zlib, libpng, libjpeg or Check. oneDNN is never needed: there are no CPU devices then.
# LIMIT (480) seconds in all: a step gets at most what is left; one that does not end in less than it wants, or for which
# nothing is left, was not run, and is named. Ends with a table and the line "N passed, N failed, N skipped"; exit 0
# only if something passed and nothing failed. Without a GPU, or without what the CUDA backend is built from, it says so
# in one line; exit 1.
# RESULTS=DIR receives table.txt (devices, links, steps, figures), steps.log (what the steps printed) and machine.log; or
# refused.log alone, which says why nothing was checked.
#
# --emulated runs the same steps, smaller, on the emulation (DPTRAIN_EMULATED_GPUS, 1 unless it is set); BUNDLE=1 then
# builds as where nothing is installed.
set -u
cd "$(dirname "$0")/../.." || exit 2
MAKE=${MAKE:-make}
PYTHON=${PYTHON:-python3}
base=${BUILD:-build}
limit=${LIMIT:-480}
bundle=$PWD/$base/gpu-bundle
[ "${base#/}" = "$base" ] || bundle=$base/gpu-bundle
emulated=
[ "${1:-}" != --emulated ] || emulated=_emulated
unset DPTRAIN_LOGICAL_DEVICES
. tests/tools/steps.sh

refusal=
refuse() {
    refusal="gpu-check: $1"
    echo "$refusal" >&2
    exit 1
}

# Whatever ends this script, RESULTS tells how far it got.
# shellcheck disable=SC2317 # a trap calls it
keep_results() {
    [ -n "${RESULTS:-}" ] || return
    mkdir -p "$RESULTS" || return
    rm -f "$RESULTS"/{table.txt,steps.log,machine.log,refused.log}
    if [ -n "$refusal" ]; then
        { echo "$refusal"; nvidia-smi; "$MAKE" --no-print-directory BUILD="$base" cuda-report; } >"$RESULTS/refused.log" 2>&1
        return
    fi
    [ -n "${table:-}" ] || return
    { cat "$devices" "$summary" "$table" && count; } >"$RESULTS/table.txt" 2>/dev/null
    tail -n +1 "$logs"/*.log >"$RESULTS/steps.log"
    { nvidia-smi 2>&1; "$program" devices --device cuda --json 2>&1; } >"$RESULTS/machine.log"
}
trap keep_results EXIT

settings=(--no-print-directory)
emulated_factor=1
if [ -n "$emulated" ]; then
    emulated_factor=4
    limit=${LIMIT:-1200} # the emulation takes its time
    export DPTRAIN_EMULATED_GPUS=${DPTRAIN_EMULATED_GPUS:-1}
else
    nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null || [ -e /dev/dxg ] ||
        refuse 'there is no NVIDIA GPU here (no nvidia-smi that lists one, no /dev/nvidia0), so nothing was checked'
    # Code for the GPUs at hand alone: 7.5 becomes 75.
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | grep -E '^[0-9]+$' | sort -un | xargs)
    [ -z "$arch" ] || settings+=(CUDA_ARCH="$arch")
    # Where PyTorch keeps its parts of CUDA.
    packages=$("$PYTHON" -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null)
    [ -z "$packages" ] || settings+=(CUDA_PYTHON="$packages")
    report=$("$MAKE" "${settings[@]}" BUILD="$base" cuda-report)
    [[ $report == 'CUDA: yes'* ]] || refuse "the CUDA backend cannot be built: ${report#CUDA: no }"
fi

# What is installed, or the bundle; CPU devices are not missed.
build=$base
has_check() {
    # shellcheck disable=SC2086 # flags are words
    printf '#include <check.h>\n' | ${CC:-gcc} ${CPPFLAGS:-} -E -x c - >/dev/null 2>&1
}
if [ -n "${BUNDLE:-}" ] || ! tests/tools/deps.sh --probe build >/dev/null 2>&1 || ! has_check; then
    build=$base/gpu
    settings+=(CPU=0)
    if [ -n "${BUNDLE:-}" ] || ! CPU=0 tests/tools/deps.sh --probe build >/dev/null 2>&1 || ! has_check; then
        [ -d "$bundle/lib" ] ||
            refuse "libraries are missing here: run 'make gpu-bundle' where they are, and copy its folder to $bundle"
        settings+=(CPPFLAGS="-I$bundle/include ${CPPFLAGS:-}" LDFLAGS="-L$bundle/lib ${LDFLAGS:-}")
    fi
fi
if [ -n "$emulated" ]; then
    programs=$build/emulated
    targets=("$programs/dptrain")
else
    programs=$build
    targets=("$build/dptrain" cuda)
fi
program=$programs/dptrain
logs=$build/logs/gpu
rm -rf "$logs"
mkdir -p "$logs" || exit 1
devices=$logs/devices.txt summary=$logs/summary.txt table=$logs/table.txt
touch "$devices" "$summary" "$table"
export CK_TIMEOUT_MULTIPLIER=5

# left MOST: seconds for the next step, at most so many; 0 when the time is up.
left() {
    local rest=$((limit - SECONDS))
    [ "$rest" -gt 0 ] || rest=0
    [ "$rest" -lt "$1" ] && echo "$rest" || echo "$1"
}

# step KIND NAME MOST COMMAND...: task or tests, while there is time.
step() {
    local kind=$1 name=$2 most=$((emulated_factor * $3)) seconds
    seconds=$(left "$most")
    shift 3
    if [ "$seconds" -lt 5 ]; then
        skip "$name" "not run: time (the $limit seconds are over)"
        return 1
    fi
    # shellcheck disable=SC2034 # read by steps.sh
    cut=$([ "$seconds" -ge "$most" ] || echo 1)
    "$kind" "$name" "$seconds" "$@"
}

row() { # row WHAT VALUE
    printf '%-50s %s\n' "$1" "$2" >>"$table"
}

finish() {
    echo
    cat "$devices" "$table"
    closing
    exit
}

step task 'build' 300 "$MAKE" -j"$(nproc)" "${settings[@]}" BUILD="$build" "${targets[@]}" \
    "$build/tests/"{test_ops,test_backend,kernel_speed}"_cuda$emulated" "$programs/"{test_engine,test_engine_backend,test_train} || finish
"$program" devices --device cuda >"$devices" 2>"$logs/devices.err" ||
    refuse "$(sed 's/^dptrain: error: //' "$logs/devices.err")"
echo >>"$devices"
gpus=$("$program" devices --device cuda --json 2>/dev/null | grep -o '"bus_id"' | wc -l)
[ "$gpus" -gt 0 ] || refuse 'dptrain devices --json lists no GPU'
one=${CUDA_VISIBLE_DEVICES:-0} # for logical devices
one=(env CUDA_VISIBLE_DEVICES="${one%%,*}")

# by_devices N: the cases of so many devices.
by_devices() {
    local all=() path
    for path in tests/parity/cases/*-"$1"dev*/; do
        [ ! -e "$path" ] || all+=("$(basename "$path")")
    done
    (IFS=, && echo "${all[*]}")
}

parity() { # parity NAME N [COMMAND...]: the cases of N devices
    local wanted
    wanted=$(by_devices "$2")
    if [ -z "$wanted" ]; then
        skip "$1" 'there is no such case'
    elif ! "$PYTHON" -c 'import json' 2>/dev/null; then
        skip "$1" "$PYTHON is missing"
    else
        step tests "$1" 120 "${@:3}" "$PYTHON" tests/parity/parity.py --device cuda --only "$wanted" "$program" \
            tests/parity/cases
    fi
}

# speed WHAT MODEL BATCH STEPS OPTION...: samples a second of one device and of several, into the table.
speed() {
    local name="bench, $2, batch $3, $1" csv
    csv=$logs/${name//[^A-Za-z0-9]/-}.csv
    step task "$name" 90 "$program" bench --device cuda --model "$2" --batch-sizes "$3" --steps "$4" "${@:5}" \
        --csv "$csv" || return
    row "$2, batch $3, samples/s" "$(tail -n 1 "$csv" |
        awk -F, -v of="$1" '{ printf "one device %.0f, %s %.0f", $3, of, $5 }')"
}

# pytorch MODEL BATCH: the same model in PyTorch, where it is there.
pytorch() {
    local name="PyTorch, $1, batch $2"
    if ! "$PYTHON" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        skip "$name" "$PYTHON has no PyTorch that sees a GPU"
    elif step task "$name" 60 "$PYTHON" tests/tools/pytorch_speed.py "$1" "$2"; then
        row "$1, batch $2, PyTorch, samples/s" "$(tail -n 1 "$log")"
    fi
}

step tests 'backend' 90 "$build/tests/test_backend_cuda$emulated"
ops=("$build/tests/test_ops_cuda$emulated")
step tests 'operations' 240 "${ops[@]}"
step tests 'engine' 90 "$programs/test_engine" cuda
step tests 'engine and backend' 90 "$programs/test_engine_backend" cuda
step tests 'training' 90 "$programs/test_train" cuda
if [ "$gpus" -lt 2 ]; then
    for n in 1 2 3 4 8; do
        parity "parity, $n logical devices" "$n"
    done
else
    logical=(1 2 4)
    [ -z "$emulated" ] || logical=(1 4) # 2 are what most cases have: they take their time
    for n in "${logical[@]}"; do
        parity "parity, $n logical devices" "$n" "${one[@]}"
    done
    for n in $(seq 2 "$gpus"); do
        parity "parity, $n GPUs" "$n"
    done
fi
small=(--model resnet18_cifar --data synthetic:64 --batch-size 32 --valid-split 0)
[ -z "$emulated" ] || small=(--model lenet --data synthetic:16 --batch-size 4 --valid-split 0)
step task 'two runs give the same bits' 60 tests/tools/same_bits.sh "$program" --device cuda --logical-devices 2 \
    "${small[@]}" --max-steps 3 --seed 7
if [ -n "$emulated" ]; then
    skip 'compute-sanitizer' 'there is no GPU code on the emulation'
elif command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        step task "compute-sanitizer, $tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 "$program" train \
            --device cuda --logical-devices 2 --model lenet --data synthetic:16 --batch-size 8 --valid-split 0 --max-steps 1 \
            --quiet --overwrite --model-dir "$logs/sanitized"
    done
else
    skip 'compute-sanitizer' 'compute-sanitizer is not on PATH'
fi
kernels=("$build/tests/kernel_speed_cuda$emulated")
[ -z "$emulated" ] || kernels+=(4096)
if step task 'kernels against a copy' 60 "${kernels[@]}"; then
    while IFS= read -r line; do
        row "${line:0:38}" "${line:38} of a copy"
    done <"$log"
fi
if [ -n "$emulated" ]; then # its times prove nothing
    CUDA_VISIBLE_DEVICES=${one[1]#*=} speed '2 logical devices' mlp 8 2 --logical-devices 2 --hidden 16
    for n in $([ "$gpus" -lt 2 ] || seq 2 "$gpus"); do
        speed "$n GPUs" mlp $((4 * n)) 2 --device-ids "$(seq -s, 0 $((n - 1)))" --hidden 16
    done
else
    for line in 'lenet 256 20' 'resnet18 64 10' 'resnet50 64 10'; do
        read -r model batch steps <<<"$line"
        CUDA_VISIBLE_DEVICES=${one[1]#*=} speed '2 logical devices' "$model" "$batch" "$steps" --logical-devices 2
        pytorch "$model" "$batch"
    done
    for n in $([ "$gpus" -lt 2 ] || seq 2 "$gpus"); do
        speed "$n GPUs" resnet50 $((32 * n)) 10 --device-ids "$(seq -s, 0 $((n - 1)))"
    done
    step task 'speed of operations' 60 "${ops[@]}" --speed && row 'speed of each operation' 'steps.log'
fi
finish
