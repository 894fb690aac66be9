#!/bin/bash
# kernel_check.sh [--long]: every load and store of the CUDA kernels looked at on emulated GPUs (bounds, owner, unwritten
# memory, alignment, races; see tests/cuda_emulation/README.md), and the sectors counted that their warps touch.
# The checker's own tests come first, then a training step of a few models, each made thin, on 1, 2 or 3 GPUs; with
# --long one of every model and the table of operations on 1, 2 and 3 GPUs. Then the table of sectors: it fails for a
# kernel that touches more than 1.25 of the ideal and whose comment does not say why.
# Ends with the line "N passed, N failed, N skipped"; exit 0 only if something passed and nothing failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
MAKE=${MAKE:-make}
PYTHON=${PYTHON:-python3}
base=${BUILD:-build}
logs=$base/logs/kernels
long=
[ "${1:-}" != --long ] || long=1
. tests/tools/steps.sh
export CK_TIMEOUT_MULTIPLIER=${CK_TIMEOUT_MULTIPLIER:-5} # a test's own limit is for kernels that nobody looks at
unset DPTRAIN_LOGICAL_DEVICES DPTRAIN_EMULATED_SEED DPTRAIN_EMULATED_DELAY_US
mkdir -p "$logs" || exit 1
program=$base/checked/dptrain
task 'build' 900 "$MAKE" -j"$(nproc)" --no-print-directory BUILD="$base" "$program" "$base/emulation/test_checker" \
    ${long:+"$base/tests/test_ops_cuda_checked"} || {
    closing
    exit 1
}
tests 'the checker' 120 "$base/emulation/test_checker"

sectors=$logs/sectors.tsv
rm -f "$sectors"
export DPTRAIN_EMULATED_COALESCING=$sectors

step() { # step GPUS MODEL [OPTION...]: one of training, and what it validates
    task "$2, $1 GPUs" 600 env DPTRAIN_EMULATED_GPUS="$1" "$program" train --device cuda --model "$2" --data synthetic:7 \
        --valid-split 0.3 --batch-size 5 --max-steps 1 --n-epoch 1 --model-dir "$logs/model" --overwrite "${@:3}"
}

thin() { # thin GPUS MODEL: as small as it gets
    case $2 in
    linear) step "$@" ;;
    mlp) step "$@" --hidden 33 --optimizer adamw --loss-mode replica ;;
    lenet) step "$@" --accumulation-steps 2 --max-steps 2 ;;
    vgg16) step "$@" --width 2 --size 32x32 ;;
    unet16) step "$@" --width 4 --filters 2 --size 32x32 ;;
    unet_*) step "$@" --width 4 --filters 2 --size 64x64 ;;
    resnet*_cifar) step "$@" --width 4 --size 16x16 ;;
    resnet*) step "$@" --width 4 --size 64x64 ;;
    *) step "$@" ;;
    esac
}

if [ -n "$long" ]; then
    for model in $("$program" train --model list); do
        for gpus in 1 2 3; do
            thin "$gpus" "$model"
        done
    done
    tests 'operations' 7200 env DPTRAIN_EMULATED_GPUS=3 DPTRAIN_TEST_LONG=1 "$base/tests/test_ops_cuda_checked"
else
    thin 1 linear
    thin 3 mlp
    thin 2 resnet18_cifar
    thin 2 unet16
fi

if "$PYTHON" -c 'import subprocess' 2>/dev/null; then
    task 'sectors' 60 "$PYTHON" tests/tools/sectors.py "$sectors" cuda/kernels/*.cu
    cat "$log"
    # A kernel that no comment explains, with 32 sectors for 4, is named.
    printf 'strided\tprogram\t0x1\tload\t4\t1\t32\t4\n' >"$logs/strided.tsv"
    # shellcheck disable=SC2016 # the shell within expands it
    task 'sectors without a reason' 60 sh -c '! "$0" "$@" >"$2.out" && grep -q "^strided: above" "$2.out"' "$PYTHON" \
        tests/tools/sectors.py "$logs/strided.tsv" cuda/kernels/*.cu
else
    skip 'sectors' "$PYTHON is missing"
fi
echo
closing
