#!/bin/bash
# check.sh quick|check|check-long: runs the steps of a tier, shows what a failing step printed, and ends with the line
# "N passed, N failed, N skipped". Exit 0 only if something passed and nothing failed. What each step printed stays in
# BUILD/logs.
set -u
cd "$(dirname "$0")/../.." || exit 2
tier=${1:-check}
MAKE=${MAKE:-make}
PYTHON=${PYTHON:-python3}
base=${BUILD:-build}
logs=$base/logs
# The builds below are no part of the make that called this, and a setting of the user's own is no part of the tests.
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD DPTRAIN DPTRAIN_LOGICAL_DEVICES DPTRAIN_TEST_LONG OMP_NUM_THREADS
mkdir -p "$logs" || exit 1
. tests/tools/steps.sh

tests/tools/deps.sh build test "$([ "$tier" = quick ] || echo check)" ||
    echo 'Going on; steps that need what is missing fail or are skipped.'

units=(tests/unit/test_*.c)
units=("${units[@]##*/}")
units=("${units[@]%.c}")

# build NAME DIR SETTING...: every program, tests and benchmarks too.
build() {
    task "$1" 900 "$MAKE" -j"$(nproc)" --no-print-directory BUILD="$2" "${@:3}" tests
}

# unit_tests LABEL DIR [COMMAND...]: every unit test program of a build; the command is put in front.
unit_tests() {
    local name
    for name in "${units[@]}"; do
        tests "$name$1" 300 "${@:3}" "$2/tests/$name"
    done
}

ops() { # ops LABEL DIR [COMMAND...]
    tests "operations$1" 600 "${@:3}" "$2/tests/test_ops"
}

cli() { # cli LABEL DIR [COMMAND...]
    tests "command line$1" 600 "${@:3}" env DPTRAIN="$2/dptrain" "$2/tests/test_cli"
}

# parity LABEL DIR CASES [OPTION...]: runs that were computed with PyTorch, with more options for dptrain train.
parity() {
    if ! "$PYTHON" -c 'import json' 2>/dev/null; then
        skip "parity$1" "$PYTHON is missing"
        return
    fi
    tests "parity$1" 600 "$PYTHON" tests/parity/parity.py --only "$3" "$2/dptrain" tests/parity/cases -- "${@:4}"
}

built=three-,linear-,mlp-,lenet- # the cases whose models there are
cases_of_three() {
    local all=(tests/parity/cases/{three,linear,mlp,lenet}-*3dev*/)
    all=("${all[@]#tests/parity/cases/}")
    (IFS=, && echo "${all[*]%/}")
}
other_ids=(--logical-devices 4 --device-ids "3,1,2" --output-device 1)

# A test's own limit is for a machine at rest.
export CK_TIMEOUT_MULTIPLIER=5
# oneDNN and libgomp keep memory until the end on purpose; TSan cannot see how they synchronise.
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
export TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp:halt_on_error=1:second_deadlock_stack=1
asan=(env CK_TIMEOUT_MULTIPLIER=10)
tsan=(env CK_TIMEOUT_MULTIPLIER=20 OMP_NUM_THREADS=1)
# TSan of gcc 12 cannot place its shadow memory where the kernel spreads addresses too widely.
setarch -R true 2>/dev/null && tsan=(setarch -R "${tsan[@]}")

have() { # have STEP TOOL: skips the step, visibly, where the tool is missing
    command -v "$2" >/dev/null && return
    skip "$1" "$2 is missing (make deps)"
    return 1
}

# cuda DIR: the CUDA backend with the real tools and libraries, which no GPU is needed for, then on emulated GPUs.
cuda() {
    local report
    report=$("$MAKE" --no-print-directory BUILD="$1" cuda-report)
    if [[ $report != 'CUDA: yes'* ]]; then
        skip 'CUDA backend' "${report#CUDA: no }"
        return
    fi
    local settings=(--no-print-directory BUILD="$1" WERROR=1 CUDA_ARCH='75 90')
    # What needs a GPU to run is built and linked all the same.
    task 'build, CUDA, warnings are errors' 900 "$MAKE" -j"$(nproc)" "${settings[@]}" cuda emulated \
        "$1/tests/"{deviceless_plans,test_ops_cuda,test_backend_cuda,test_ops_cuda_emulated,test_backend_cuda_emulated} ||
        return
    task 'convolutions planned by cuDNN without a GPU' 300 "$1/tests/deviceless_plans" tests/cuda/devices/*.json
    task 'a machine without a GPU' 60 tests/tools/test_no_gpu.sh "$1/dptrain"
    tests 'the CUDA emulation' 300 "$MAKE" --no-print-directory BUILD="$1" emulation-check
    tests 'make gpu-check, emulated GPUs' 1200 env DPTRAIN_EMULATED_GPUS=8 DPTRAIN_EMULATED_SEED=1 CASES="$built" \
        "$MAKE" "${settings[@]}" EMULATED=1 gpu-check
    tests 'command line, emulated GPUs' 300 env DPTRAIN="$1/emulated/dptrain" EMULATED_TOOLS="$1/emulated/tools" \
        "$1/tests/test_cli"
}

quick() {
    build 'build' "$base" || return
    unit_tests '' "$base"
    cli '' "$base"
    parity ', a few cases' "$base" three-,mlp-gather,mlp-replica,lenet-
}

check() {
    have 'formatting' clang-format && task 'formatting' 60 "$MAKE" lint-format
    task 'rules of the source tree' 60 "$MAKE" lint-rules
    have 'scripts' shellcheck && task 'scripts' 60 "$MAKE" lint-scripts
    task 'Makefile' 300 tests/tools/test_makefile.sh
    task 'steps of the check' 60 tests/tools/test_steps.sh

    if build 'build, gcc, warnings are errors' "$base/check" WERROR=1; then
        unit_tests '' "$base/check"
        ops '' "$base/check"
        cli '' "$base/check"
        parity '' "$base/check" "$built"
        parity ', other device ids' "$base/check" "$(cases_of_three)" "${other_ids[@]}"
        cuda "$base/check"
    fi
    if have 'build, clang, warnings are errors' clang &&
        build 'build, clang, warnings are errors' "$base/clang" CC=clang WERROR=1; then
        unit_tests ', clang' "$base/clang"
        ops ', clang' "$base/clang"
    fi
    if build 'build, ASan and UBSan' "$base/asan" SANITIZE=address,undefined CFLAGS='-g -O2'; then
        unit_tests ', ASan' "$base/asan" "${asan[@]}"
        ops ', ASan' "$base/asan" "${asan[@]}"
        cli ', ASan' "$base/asan" "${asan[@]}"
        parity ', ASan' "$base/asan" "$built"
    fi
    if build 'build, TSan' "$base/tsan" SANITIZE=thread CFLAGS='-g -O1'; then
        unit_tests ', TSan' "$base/tsan" "${tsan[@]}"
    fi
}

check_long() {
    check
    local round
    ops ', TSan' "$base/tsan" "${tsan[@]}"
    tests 'a crash at every change of a file' 7200 env DPTRAIN_TEST_LONG=1 CK_RUN_SUITE=resume \
        DPTRAIN="$base/check/dptrain" "$base/check/tests/test_cli"
    for round in 1 2 3 4 5; do
        unit_tests ", repeat $round" "$base/check"
        unit_tests ", TSan, repeat $round" "$base/tsan" "${tsan[@]}"
    done
}

case $tier in
quick) quick ;;
check) check ;;
check-long) check_long ;;
*)
    echo "check.sh: no tier '$tier'" >&2
    exit 2
    ;;
esac
echo
closing
