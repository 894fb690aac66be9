#!/bin/sh
# check_tsan.sh PROGRAM SEED...
# Runs the ordering program, built with ThreadSanitizer, once for each planted mistake and seed. A mistake that is not
# reported, or a report on a correct program, is a failure.
program=$1
shift
failed=0
export DPTRAIN_EMULATED_GPUS=3 DPTRAIN_EMULATED_DELAY_US=400
export TSAN_OPTIONS="exitcode=66 report_bugs=1 history_size=4 atexit_sleep_ms=0"
for case in correct own-workspaces missing-wait missing-wait-late overwrite-before-read wait-before-record \
    rewrite-pinned shared-workspace; do
    reported=0
    runs=0
    for seed in "$@"; do
        DPTRAIN_EMULATED_SEED=$seed "$program" $case >/dev/null 2>&1
        status=$?
        runs=$((runs + 1))
        case $status in
        66) reported=$((reported + 1)) ;;
        0 | 1) ;;
        *)
            echo "$case, seed $seed: exit status $status"
            failed=1
            ;;
        esac
    done
    case $case in
    correct | own-workspaces) wanted=0 ;;
    *) wanted=$runs ;;
    esac
    verdict=ok
    if [ $reported -ne $wanted ]; then
        verdict=FAILED
        failed=1
    fi
    echo "$case: reported in $reported of $runs runs, wanted $wanted: $verdict"
done
exit $failed
