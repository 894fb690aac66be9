# steps.sh: sourced by check.sh and gpu_check.sh. Runs the steps of a check, each under a time limit, counts what passed,
# failed and was skipped, and closes with the line "N passed, N failed, N skipped". What a step prints goes to a file in
# $logs.
# shellcheck shell=bash
# shellcheck disable=SC2030,SC2031 # what a subshell counted comes back by a file

passed=0 failed=0 skipped=0
running=
lanes=()

# A step runs in a process group of its own, which Ctrl-C does not reach: it is passed on.
end_running() {
    # shellcheck disable=SC2086 # no word where nothing runs
    kill $running "${lanes[@]}" 2>/dev/null
    wait
}
stop() {
    end_running
    echo "interrupted: $passed passed, $failed failed, $skipped skipped before"
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

# run NAME SECONDS COMMAND...: sets status, seconds and log.
run() {
    local limit=$2 began=$SECONDS
    log=${logs:?}/${1//[^A-Za-z0-9]/-}.log
    shift 2
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null &
    running=$!
    wait "$running"
    status=$?
    running=
    seconds=$((SECONDS - began))
    [ "$status" -ne 124 ] || echo "stopped after $limit seconds" >>"$log"
}

# say FORMAT VALUE...: a line for people, which the file named in $summary keeps, if there is one.
say() {
    # shellcheck disable=SC2059 # the format is an argument
    printf "$@" | tee -a "${summary:-/dev/null}"
}

report() { # report NAME GOOD BAD: after run
    passed=$((passed + $2))
    failed=$((failed + $3))
    if [ "$3" -eq 0 ]; then
        say 'ok    %-44s %4d passed %5d s\n' "$1" "$2" "$seconds"
    else
        say 'FAIL  %-44s %4d passed, %d failed, exit %d, %d s\n' "$1" "$2" "$3" "$status" "$seconds"
        sed 's/^/      | /' "$log" | tail -n 80
    fi
}

# After run: true for a step that got less time than it wants (the caller has set `cut`) and did not end in it. It was
# not run, and has not failed; what it had printed shows.
was_cut() { # was_cut NAME
    [ -n "${cut:-}" ] && { [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; } || return
    skip "$1" "not run: time ($seconds s were left)"
    sed 's/^/      | /' "$log" | tail -n 20
}

# task NAME SECONDS COMMAND...: one test, passed if the command exits with 0. False if it failed.
task() {
    run "$@"
    if was_cut "$1"; then
        return 1
    elif [ "$status" -eq 0 ]; then
        report "$1" 1 0
    else
        report "$1" 0 1
        return 1
    fi
}

# tests NAME SECONDS COMMAND...: a command that says how many tests it ran, as Check's programs, parity.py and scripts like
# this do. One
# that ran none has failed, and so has one that ends badly though all that it counted passed.
tests() {
    local ran=0 bad=0 line
    run "$@"
    ! was_cut "$1" || return
    while IFS= read -r line; do
        if [[ $line =~ ^[0-9]+%:\ Checks:\ ([0-9]+),\ Failures:\ ([0-9]+),\ Errors:\ ([0-9]+) ]]; then
            ran=$((ran + BASH_REMATCH[1]))
            bad=$((bad + BASH_REMATCH[2] + BASH_REMATCH[3]))
        elif [[ $line =~ ^([0-9]+)\ of\ ([0-9]+)\ cases\ match ]]; then
            ran=$((ran + BASH_REMATCH[2]))
            bad=$((bad + BASH_REMATCH[2] - BASH_REMATCH[1]))
        elif [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
            ran=$((ran + BASH_REMATCH[1] + BASH_REMATCH[2]))
            bad=$((bad + BASH_REMATCH[2]))
            skipped=$((skipped + BASH_REMATCH[3]))
        elif [[ $line == 'skip  '* ]]; then
            echo "$line"
        fi
    done <"$log"
    [ "$ran" -gt 0 ] || echo "no test was run" >>"$log"
    if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$ran" -eq 0 ]; }; then
        report "$1" "$ran" 1
    else
        report "$1" $((ran - bad)) "$bad"
    fi
}

skip() { # skip NAME REASON
    skipped=$((skipped + 1))
    say 'skip  %-44s %s\n' "$1" "$2"
}

# side_by_side FUNCTION...: runs the functions, whose steps must not share files, each in a process of its own, and adds
# what they counted. Most steps keep one core busy.
side_by_side() {
    local lane counted
    for lane; do
        rm -f "$logs/$lane.counts"
        (
            trap 'end_running; exit 143' TERM
            passed=0 failed=0 skipped=0 lanes=()
            "$lane"
            echo "$passed $failed $skipped" >"$logs/$lane.counts"
        ) &
        lanes+=($!)
    done
    wait "${lanes[@]}"
    lanes=()
    for lane; do
        counted=(0 1 0)
        if [ -s "$logs/$lane.counts" ]; then
            read -ra counted <"$logs/$lane.counts"
        else
            printf 'FAIL  %-44s did not get to its end\n' "$lane"
        fi
        passed=$((passed + counted[0])) failed=$((failed + counted[1])) skipped=$((skipped + counted[2]))
    done
}

count() {
    echo "$passed passed, $failed failed, $skipped skipped"
}

# The last line; true if something passed and nothing failed.
closing() {
    count
    [ "$passed" -gt 0 ] && [ "$failed" -eq 0 ]
}
