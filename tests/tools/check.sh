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

case $tier in
quick) needs='build test' ;;
check) needs='build test check' ;;
*) needs='build test check long browser' ;;
esac
# shellcheck disable=SC2086 # words
tests/tools/deps.sh $needs ||
    echo 'Going on; steps that need what is missing fail or are skipped.'

units=(tests/unit/test_*.c)
units=("${units[@]##*/}")
units=("${units[@]%.c}")

# build NAME DIR SETTING...: every program, tests too.
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

faults() { # faults LABEL DIR [COMMAND...]: every call of the system that can fail, failing
    tests "faults$1" 1800 "${@:3}" "$2/tests/test_faults"
}

# pages LABEL DIR: the live view, traces, and reports, these also as Chromium shows them, where there is one.
pages() {
    if ! "$PYTHON" -c 'import json, html.parser' 2>/dev/null; then
        skip "live view, traces, reports$1" "$PYTHON is missing"
        return
    fi
    tests "live view$1" 120 "$PYTHON" tests/report/test_live.py "$2/dptrain"
    tests "traces$1" 300 env PYTHON="$PYTHON" tests/report/test_trace.sh "$2/dptrain"
    tests "reports$1" 600 env PYTHON="$PYTHON" tests/report/test_report.sh "$2/dptrain" --browser
}

guide() { # guide DIR: bench/GUIDE.md says what its commands print
    if ! "$PYTHON" -c 'import subprocess' 2>/dev/null; then
        skip 'the guide' "$PYTHON is missing"
        return
    fi
    task 'what the guide lets pass' 60 "$PYTHON" -m doctest bench/guide.py
    tests 'the guide' 300 "$PYTHON" bench/guide.py --check bench/GUIDE.md "$1/dptrain"
}

readers=(tests/fuzz/fuzz_*.c)
readers=("${readers[@]##*/fuzz_}")
readers=("${readers[@]%.c}")

# fuzz_inputs LABEL DIR [COMMAND...]: what fuzzing has found so far, and its starting points, once each.
fuzz_inputs() {
    local reader
    for reader in "${readers[@]}"; do
        tests "fuzz inputs, $reader$1" 120 "${@:3}" "$2/tests/fuzz_$reader" "tests/fuzz/corpus/$reader"
    done
}

# fuzz RUNS SECONDS: that many new inputs for each reader of untrusted bytes, or for so long.
fuzz() {
    local name='fuzzing' reader found
    have "$name" clang || return
    if ! tests/tools/deps.sh --probe check 2>&1 | grep -q libFuzzer; then
        task 'build, libFuzzer' 900 "$MAKE" -j"$(nproc)" --no-print-directory BUILD="$base/fuzz" CC=clang \
            SANITIZE=fuzzer-no-link,address,undefined FUZZER=-fsanitize=fuzzer CFLAGS='-g -O1' fuzzers || return
        for reader in "${readers[@]}"; do
            found=$logs/fuzz/$reader # what it finds to be new, and what breaks the reader
            mkdir -p "$found/inputs" || return
            task "fuzzing, $reader" $(($2 + 300)) "$base/fuzz/tests/fuzz_$reader" -runs="$1" -max_total_time="$2" \
                -seed=1 -timeout=20 -rss_limit_mb=3000 -max_len=4096 -artifact_prefix="$found/" "$found/inputs" \
                "tests/fuzz/corpus/$reader"
        done
    else
        skip "$name" 'clang has no libFuzzer (make deps)'
    fi
}

cli() { # cli LABEL DIR [COMMAND...]
    tests "command line$1" 1200 "${@:3}" env DPTRAIN="$2/dptrain" "$2/tests/test_cli"
}

# parity LABEL DIR CASES [OPTION...]: runs that were computed with PyTorch ('': all of them), with more options for
# dptrain train.
parity() {
    if ! "$PYTHON" -c 'import json' 2>/dev/null; then
        skip "parity$1" "$PYTHON is missing"
        return
    fi
    tests "parity$1" 600 "$PYTHON" tests/parity/parity.py --only "$3" "$2/dptrain" tests/parity/cases -- "${@:4}"
}

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

have_cuda() { # have_cuda STEP: skips the step, visibly, where the CUDA backend cannot be built
    local report
    report=$("$MAKE" --no-print-directory BUILD="$base" cuda-report)
    [[ $report == 'CUDA: yes'* ]] && return
    skip "$1" "${report#CUDA: no }"
    return 1
}

# cuda DIR: the CUDA backend with the real tools and libraries, which no GPU is needed for, then on emulated GPUs.
cuda() {
    have_cuda 'CUDA backend' || return
    local settings=(--no-print-directory BUILD="$1" WERROR=1 CUDA_ARCH='75 90')
    # What needs a GPU to run is built and linked all the same.
    task 'build, CUDA, warnings are errors' 900 "$MAKE" -j"$(nproc)" "${settings[@]}" cuda emulated \
        "$1/tests/"{deviceless_plans,test_ops_cuda,test_backend_cuda,test_ops_cuda_emulated,test_backend_cuda_emulated} \
        "$1/tests/"{test_engine_cuda_emulated,test_faults_cuda_emulated} "$1/emulated/example" || return
    task 'convolutions planned by cuDNN without a GPU' 300 "$1/tests/deviceless_plans" tests/cuda/devices/*.json
    task 'a machine without a GPU' 60 tests/tools/test_no_gpu.sh "$1/dptrain"
    tests 'the CUDA emulation' 300 "$MAKE" --no-print-directory BUILD="$1" emulation-check
    tests 'every access of the kernels, emulated GPUs' 600 env BUILD="$1" WERROR=1 \
        CUDA_ARCH='75 90' tests/tools/kernel_check.sh
    tests 'engine held up, emulated GPUs' 300 "$1/tests/test_engine_cuda_emulated"
    tests 'faults of CUDA, cuBLAS and cuDNN' 600 "$1/tests/test_faults_cuda_emulated"
    tests 'make gpu-check, emulated GPUs' 1200 env DPTRAIN_EMULATED_GPUS=8 DPTRAIN_EMULATED_SEED=1 \
        "$MAKE" "${settings[@]}" EMULATED=1 gpu-check
    # shellcheck disable=SC2016 # the shell within expands it
    task 'a program on the library, emulated GPUs' 60 env DPTRAIN_EMULATED_GPUS=2 \
        sh -c '"$1" >"$1.out" && grep -qx "2 cuda devices" "$1.out"' sh "$1/emulated/example"
    tests 'traces, emulated GPUs' 300 env PYTHON="$PYTHON" DPTRAIN_EMULATED_GPUS=3 tests/report/test_trace.sh \
        "$1/emulated/dptrain" cuda
    tests 'command line, emulated GPUs' 300 env DPTRAIN="$1/emulated/dptrain" EMULATED_TOOLS="$1/emulated/tools" \
        "$1/tests/test_cli"
}

# cuda_tsan DIR MODELS SEED...: the engine's hand-overs on emulated GPUs, whose streams are threads that ThreadSanitizer
# sees ordered by events alone; every other seed with delays. A `model` is a case of test_handovers.
cuda_tsan() {
    local seed name model dir=$1 models=$2
    shift 2
    have_cuda 'engine, emulated GPUs, TSan' || return
    task 'build, emulated GPUs, TSan' 900 "$MAKE" -j"$(nproc)" --no-print-directory BUILD="$dir" SANITIZE=thread \
        CFLAGS='-g -O1' "$dir/emulated/"test_{engine,engine_backend,handovers} || return
    for seed; do
        for name in test_engine test_engine_backend; do
            tests "$name, emulated GPUs, TSan, seed $seed" 300 "${tsan[@]}" CK_RUN_CASE=ordering DPTRAIN_EMULATED_GPUS=3 \
                DPTRAIN_EMULATED_DELAY_US=200 DPTRAIN_EMULATED_SEED="$seed" "$dir/emulated/$name" cuda
        done
        for model in $models; do
            tests "hand-overs, $model, emulated GPUs, TSan, seed $seed" 900 "${tsan[@]}" CK_RUN_CASE="$model" \
                DPTRAIN_EMULATED_GPUS=3 DPTRAIN_EMULATED_DELAY_US=$((seed % 2 * 200)) \
                DPTRAIN_EMULATED_SEED="$seed" "$dir/emulated/test_handovers" cuda
        done
    done
}

# missed_waits LABEL DIR SECONDS [OPTION]: each wait of the engine and the CUDA backend left out in turn, and missed; the
# table is shown where it is whole.
missed_waits() {
    local name="every wait is missed$1"
    have_cuda "$name" || return
    have "$name" addr2line || return
    if ! "$PYTHON" -c 'import concurrent.futures' 2>/dev/null; then
        skip "$name" "$PYTHON is missing"
        return
    fi
    [ -x "$2/emulated/test_handovers" ] || return
    tests "$name" "$3" "${tsan[@]}" "$PYTHON" tests/tools/waits.py "$2/emulated/test_handovers" "${@:4}"
    [ $# -gt 3 ] || cat "$log"
}

quick() {
    build 'build' "$base" || return
    unit_tests '' "$base"
    CK_EXCLUDE_TAGS=slow cli '' "$base"
    parity ', a few cases' "$base" three-,mlp-gather,mlp-replica,lenet-
}

plain() {
    build 'build, gcc, warnings are errors' "$base/check" WERROR=1 || return
    unit_tests '' "$base/check"
    ops '' "$base/check"
    cli '' "$base/check"
    faults '' "$base/check"
    pages '' "$base/check"
    guide "$base/check"
    parity '' "$base/check" ''
    parity ', other device ids' "$base/check" "$(cases_of_three)" "${other_ids[@]}"
    cuda "$base/check"
    task 'library and installation' 300 env MAKE="$MAKE" tests/library/test_library.sh "$base/check" WERROR=1 \
        CUDA_ARCH='75 90'
    task 'man page and completion' 60 tests/library/test_manual.sh "$base/check"
}

sanitized() {
    if build 'build, ASan and UBSan' "$base/asan" SANITIZE=address,undefined CFLAGS='-g -O2'; then
        unit_tests ', ASan' "$base/asan" "${asan[@]}"
        ops ', ASan' "$base/asan" "${asan[@]}"
        CK_EXCLUDE_TAGS='slow usage' cli ', ASan' "$base/asan" "${asan[@]}"
        faults ', ASan' "$base/asan" "${asan[@]}"
        fuzz_inputs ', ASan' "$base/asan"
        parity ', ASan' "$base/asan" ''
    fi
    if build 'build, TSan' "$base/tsan" SANITIZE=thread CFLAGS='-g -O1'; then
        unit_tests ', TSan' "$base/tsan" "${tsan[@]}"
        cli ', several threads a device, TSan' "$base/tsan" "${tsan[@]}" CK_RUN_CASE=teams
        cuda_tsan "$base/tsan" 'mlp rare' 1
        missed_waits ', a few' "$base/tsan" 300 --thin
    fi
}

by_clang() {
    have 'build, clang, warnings are errors' clang &&
        build 'build, clang, warnings are errors' "$base/clang" CC=clang WERROR=1 || return
    unit_tests ', clang' "$base/clang"
    ops ', clang' "$base/clang"
}

# With `sanitized` beside it, which takes about as long.
unsanitized() {
    plain
    fuzz 10000 60
    by_clang
}

check() {
    have 'formatting' clang-format && task 'formatting' 60 "$MAKE" lint-format
    task 'rules of the source tree' 60 "$MAKE" lint-rules
    have 'scripts' shellcheck && task 'scripts' 60 "$MAKE" lint-scripts
    task 'Makefile' 300 tests/tools/test_makefile.sh
    task 'steps of the check' 60 tests/tools/test_steps.sh
    side_by_side unsanitized sanitized
}

check_long() {
    check
    local round plans=$base/check/tests/deviceless_plans cuda_faults=$base/check/tests/test_faults_cuda_emulated
    [ ! -x "$plans" ] ||
        task 'more convolutions planned by cuDNN' 600 "$plans" --more tests/cuda/devices/*.json
    if have_cuda 'make gpu-check where nothing is installed'; then
        task 'make gpu-bundle' 60 "$MAKE" --no-print-directory BUILD="$base/check" gpu-bundle &&
            tests 'make gpu-check where nothing is installed' 1500 env DPTRAIN_EMULATED_GPUS=4 BUNDLE=1 "$MAKE" \
                --no-print-directory BUILD="$base/check" EMULATED=1 gpu-check
    fi
    [ ! -x "$cuda_faults" ] || tests 'faults of CUDA, cuBLAS and cuDNN, every call' 7200 "$cuda_faults" all
    ! have_cuda 'every access of the kernels, every model' ||
        tests 'every access of the kernels, every model' 7200 env BUILD="$base/check" WERROR=1 CUDA_ARCH='75 90' \
            tests/tools/kernel_check.sh --long
    faults ', all commands' "$base/check" env DPTRAIN_FAULTS=all
    faults ', all commands, ASan' "$base/asan" "${asan[@]}" DPTRAIN_FAULTS=all
    tests 'sweep, 1 to 64 devices by 1 to 257 samples' 3600 env DPTRAIN_SWEEP=all "$base/check/tests/test_sweep"
    task 'make demo-segmentation reaches its F1' 1800 "$MAKE" --no-print-directory BUILD="$base/check" WERROR=1 \
        demo-segmentation
    have 'valgrind' valgrind && task 'valgrind' 1800 tests/tools/valgrind.sh "$base/check/dptrain"
    fuzz 5000000 900
    ops ', TSan' "$base/tsan" "${tsan[@]}"
    cuda_tsan "$base/tsan" 'mlp lenet resnet18_cifar unet16 rare' {1..20}
    missed_waits '' "$base/tsan" 7200
    ! have_cuda 'planted mistakes in the order of streams, TSan' ||
        task 'planted mistakes in the order of streams, TSan' 600 "${tsan[@]}" "$MAKE" --no-print-directory \
            BUILD="$base/tsan" emulation-check-tsan
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
