#!/bin/bash
# test_steps.sh: the counting and the verdict of steps.sh, with commands whose results are known.
set -u
cd "$(dirname "$0")/../.." || exit 2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0

# expect NAME STATUS LAST-LINE TEXT STEPS: the steps run by a script of their own.
expect() {
    local out status last
    out=$(logs=$tmp bash -c ". tests/tools/steps.sh; $5; closing" 2>&1)
    status=$?
    last=$(printf '%s\n' "$out" | tail -n 1)
    if [ "$status" -ne "$2" ] || [ "$last" != "$3" ] || [[ $out != *"$4"* ]]; then
        printf 'FAILED %s: exit %d (want %d), last line "%s" (want "%s"), or no "%s" in:\n%s\n' \
            "$1" "$status" "$2" "$last" "$3" "$4" "$out"
        bad=1
    fi
}

expect 'tasks count one each' 0 '2 passed, 0 failed, 0 skipped' 'ok' 'task a 5 true; task b 5 true'
expect 'a failing task shows what it printed' 1 '1 passed, 1 failed, 0 skipped' '| the reason' \
    'task a 5 true; task b 5 sh -c "echo the reason; exit 3"'
expect 'a check program counts its checks' 0 '7 passed, 0 failed, 0 skipped' 'ok' \
    'tests a 5 echo "100%: Checks: 7, Failures: 0, Errors: 0"'
expect 'failures and errors are failed' 1 '4 passed, 3 failed, 0 skipped' 'exit 1' \
    'tests a 5 sh -c "echo 57%: Checks: 7, Failures: 2, Errors: 1; exit 1"'
expect 'failures count though the exit status is 0' 1 '6 passed, 1 failed, 0 skipped' 'FAIL' \
    'tests a 5 echo "85%: Checks: 7, Failures: 1, Errors: 0"'
expect 'a bad end after passed checks has failed' 1 '7 passed, 1 failed, 0 skipped' 'exit 9' \
    'tests a 5 sh -c "echo 100%: Checks: 7, Failures: 0, Errors: 0; exit 9"'
expect 'parity cases count' 1 '5 passed, 2 failed, 0 skipped' 'exit 1' \
    'tests a 5 sh -c "echo 5 of 7 cases match \(cpu\); exit 1"'
expect 'a script of steps counts as what it counted' 1 '3 passed, 2 failed, 1 skipped' 'skip  c' \
    'tests a 5 bash -c ". tests/tools/steps.sh; task b 5 true; task b 5 true; task b 5 true; task d 5 false; task d 5 false; skip c why; closing"'
expect 'no checks have failed' 1 '1 passed, 1 failed, 0 skipped' 'no test was run' \
    'task a 5 true; tests b 5 echo "100%: Checks: 0, Failures: 0, Errors: 0"'
expect 'a program that says nothing has failed' 1 '1 passed, 1 failed, 0 skipped' 'no test was run' \
    'task a 5 true; tests b 5 true'
expect 'a program that is not there has failed' 1 '0 passed, 1 failed, 0 skipped' 'exit 127' 'tests a 5 ./nothing-here'
expect 'a crash has failed' 1 '0 passed, 1 failed, 0 skipped' 'exit 139' 'tests a 5 sh -c "kill -SEGV \$\$"'
expect 'a step that hangs is stopped' 1 '1 passed, 1 failed, 0 skipped' 'stopped after 1 seconds' \
    'task a 5 true; task b 1 sleep 30'
expect 'a step that was given too little time has not failed' 0 '1 passed, 0 failed, 2 skipped' 'not run: time' \
    'task a 5 true; cut=1; task b 1 sleep 30; tests c 1 sleep 30'
expect 'but one that fails in it has' 1 '0 passed, 2 failed, 0 skipped' 'exit 3' \
    'cut=1; task b 5 sh -c "exit 3"; tests c 5 sh -c "exit 3"'
expect 'skips show, and do not fail' 0 '1 passed, 0 failed, 1 skipped' 'no compiler' 'task a 5 true; skip b "no compiler"'
expect 'skips alone are no success' 1 '0 passed, 0 failed, 1 skipped' 'no compiler' 'skip b "no compiler"'

both='one() { task a 5 true; skip b why; }; two() { task c 5 true; task d 5 false; }'
expect 'functions side by side count together' 1 '3 passed, 1 failed, 1 skipped' 'ok' \
    "task z 5 true; $both; side_by_side one two"
expect 'a function that ends the shell has failed' 1 '1 passed, 1 failed, 1 skipped' 'did not get to its end' \
    'one() { task a 5 true; skip b why; }; two() { task c 5 true; exit 0; }; side_by_side one two'

# An interruption ends the running steps and the script at once.
began=$SECONDS
for steps in 'long' 'side_by_side long'; do
    logs=$tmp bash -c ". tests/tools/steps.sh
        long() { task a 60 sh -c 'echo \$\$ >$tmp/pid; exec sleep 60'; }
        $steps; closing" >"$tmp/out" 2>&1 &
    sleep 1
    kill -TERM $!
    wait $!
    status=$?
    if [ $status -ne 143 ] || [ $((SECONDS - began)) -gt 20 ] || ! grep -q '^interrupted' "$tmp/out" ||
        kill -0 "$(cat "$tmp/pid")" 2>/dev/null; then
        echo "FAILED an interruption: exit $status after $((SECONDS - began)) s: $(cat "$tmp/out")"
        bad=1
    fi
done
[ $bad -eq 0 ] && echo 'steps: all as expected'
exit $bad
