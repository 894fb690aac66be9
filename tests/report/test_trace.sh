#!/bin/bash
# test_trace.sh PROGRAM [KIND]: traces of runs on 1 to 3 devices of a kind (cpu), and what becomes of a trace that cannot
# be written. Ends with "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/../.." || exit 2
program=$(realpath "$1")
kind=${2:-cpu}
PYTHON=${PYTHON:-python3}
check=$PWD/tests/report/check_trace.py
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 2
passed=0 failed=0
result() { # result STATUS WHAT: of what was run; its output is in the file `out`
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $2"
        cat out
    fi
}
train() { # train DEVICES [OPTION...]: a few steps and a validation after each epoch
    local n=$1
    shift
    "$program" train --device "$kind" --logical-devices "$n" --threads-per-device 1 --data synthetic:150 \
        --batch-size 48 --n-epoch 2 --model-dir "model$n" --overwrite --quiet "$@"
}
trace() { # trace DEVICES MODE [OPTION...]: a run with a trace, which is as it should be
    local n=$1 mode=$2 devices
    mapfile -t devices < <(seq -f "$kind:%g" 0 $((n - 1)))
    shift 2
    { train "$n" --loss-mode "$mode" --trace trace.json "$@" &&
        "$PYTHON" "$check" trace.json "$mode" "${devices[@]}"; } >out 2>&1
    result $? "$n devices, $mode $*"
    rm -f trace.json
}
for n in 1 2 3; do
    trace $n gather
done
trace 2 replica
trace 3 global --model mlp --hidden 700,700 --accumulation-steps 2 --optimizer adamw --num-workers 3

# The same weights with and without.
train 2 --save plain >out 2>&1 && train 2 --save other --trace trace.json >>out 2>&1 && cmp plain other >>out 2>&1
result $? 'a trace changes nothing'

# Nothing of a run that fails is left, nor of one whose disk fills: the limit is below the trace, above all else.
fails() { # fails TEXT COMMAND...: exit 1, one line with TEXT, and no trace
    local text=$1 status
    shift
    "$@" >out 2>&1
    status=$?
    [ $status -eq 1 ] && [ "$(grep -c . out)" -eq 1 ] && grep -q "^dptrain: error: .*$text" out && ! ls trace* >/dev/null 2>&1
    result $? "$text: exit $status"
}
rm -f trace.json
many=(train 2 --model linear --batch-size 2 --n-epoch 4 --model-dir many --trace trace.json)
limited() { (ulimit -f 150 && "${many[@]}"); }
[ "$kind" != cpu ] || fails "cannot write 'trace.json': File too large" limited
fails "cannot write 'nowhere/trace.json'" train 1 --trace nowhere/trace.json
mkdir folder
fails "it is a directory" train 1 --trace folder

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
