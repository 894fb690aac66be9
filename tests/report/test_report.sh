#!/bin/bash
# test_report.sh PROGRAM [--browser]: pages about real runs and strange logs. Ends with "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/../.." || exit 2
program=$(realpath "$1")
browser=${2-}
PYTHON=${PYTHON:-python3}
tests=$PWD/tests/report
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 2
passed=0 failed=0 skipped=0
if [ -n "$browser" ] && ! command -v chromium >/dev/null; then
    echo 'skip  reports in a browser                          chromium is missing (tests/tools/deps.sh browser)'
    skipped=1
    browser=''
fi
result() { # result STATUS WHAT: of what was run; its output is in the file `out`
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $2"
        head -c 2000 out
    fi
}
page() { # page PAGE LOG WHAT: the page is as it should be
    "$PYTHON" "$tests/check_report.py" "${4-}" "$1" "$2" >out 2>&1
    result $? "$3"
}
fails() { # fails CODE TEXT ARGUMENT...: exit CODE, one line with TEXT, and no page
    local code=$1 text=$2 status
    shift 2
    "$program" report "$@" >out 2>&1
    status=$?
    [ $status -eq "$code" ] && [ "$(wc -l <out)" -eq 1 ] && grep -q "^dptrain: error: .*$text" out && [ ! -e page.html ]
    result $? "report $*: exit $status"
}
train() {
    "$program" train --device cpu --threads-per-device 1 --data synthetic:200 --batch-size 48 --n-epoch 2 --quiet "$@"
}

# ---- real runs ----

for n in 1 3; do
    train --logical-devices $n --model-dir "run$n" --report "train$n.html" >out 2>&1
    result $? "a run on $n devices with --report"
    page "train$n.html" "run$n/log.jsonl" "the page of a run on $n devices" "$browser"
    "$program" report "run$n" -o "report$n.html" >out 2>&1 && cmp "train$n.html" "report$n.html" >>out 2>&1
    result $? "dptrain report makes the same page"
done
# What a run says of its load, after its table of devices, its page says too (a word at the beginning has a capital).
for steps in 2 20; do
    train --model mlp --num-classes 3000 --hidden 16 --batch-size 10 --logical-devices 2 --model-dir said$steps \
        --max-steps $steps >said 2>out
    "$program" report said$steps -o said.html >out 2>&1
    line=$(grep -A 1 '^cpu:1 ' said | tail -n 1)
    [ -n "$line" ] && grep -F '<p class="verdict">' said.html | grep -qF "${line:1}" &&
        { [ $steps -gt 2 ] || [[ $line == '2 steps are too few to judge the load'* ]]; }
    result $? "the verdict on $steps steps: $line"
done
"$program" report run1/log.jsonl --output=page.html >out 2>&1
page page.html run1/log.jsonl 'a log by its name'
rm -f page.html

# ---- logs that no short run leaves ----

"$PYTHON" "$tests/strange_logs.py" . || exit 1
for log in *.good.jsonl; do
    "$program" report "$log" -o page.html >out 2>&1
    result $? "$log makes a page"
    case $log in
    another-shape*) ;; # nothing to compare with
    many* | hostile* | masks*) page page.html "$log" "the page of $log" "$browser" ;;
    *) page page.html "$log" "the page of $log" ;;
    esac
    rm -f page.html
done
for log in *.bad.jsonl; do
    case $log in # corrupt, or sound JSON that is no log
    deep.* | not-json.* | utf16.* | zeros.*) code=1 ;;
    *) code=2 ;;
    esac
    fails $code "$log" "$log" -o page.html
done

# ---- what cannot be read or written ----

mkdir empty folder
fails 1 "'empty/log.jsonl'" empty -o page.html
fails 1 "cannot read 'nowhere'" nowhere -o page.html
fails 1 'it is a directory' run1 -o folder
fails 1 "cannot write 'nowhere/page.html'" run1 -o nowhere/page.html
fails 2 'would be written over the log' run1 -o run1/log.jsonl
fails 2 'would be written over the log' run1/log.jsonl -o run1/log.jsonl
fails 2 'needs a run' -o page.html
fails 2 '-o FILE' run1
fails 2 'needs a value' run1 -o
fails 2 "unexpected argument 'more'" run1 more -o page.html
full() { (ulimit -f 8 && "$program" report run3 -o page.html); }
full >out 2>&1
[ $? -eq 1 ] && [ "$(wc -l <out)" -eq 1 ] && grep -q "cannot write 'page.html': File too large" out && ! ls page.html* >/dev/null 2>&1
result $? 'a disk that fills'

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
