#!/bin/bash
# valgrind.sh PROGRAM: short runs of training and evaluation under valgrind. An error or a leak is ours if the first
# frame that belongs to neither valgrind nor libc is in a source file of the project. oneDNN's generated code, which has
# no name, reads whole vectors beyond the end of its own buffers.
set -u
program=$(realpath "$1") || exit 2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 2
bad=0
run() { # run NAME OPTION...
    local name=$1
    shift
    if ! OMP_NUM_THREADS=1 valgrind --leak-check=full --num-callers=40 --log-file="$name.%p" "$program" "$@" --device cpu \
        --logical-devices 2 --threads-per-device 1 >"$name.out" 2>&1; then
        echo "FAILED $name:"
        tail -n 5 "$name.out"
        bad=1
    fi
    # A block ends with an empty line. What is reachable at the end is no leak.
    sed 's/^==[0-9]*== \?//' "$name".[0-9]* | awk -v RS= -v name="$name" '
        /still reachable|HEAP SUMMARY|LEAK SUMMARY|ERROR SUMMARY|possibly lost/ { next }
        {
            n = split($0, line, "\n")
            for (i = 1; i <= n; i++) {
                if (line[i] !~ /^ +(at|by) 0x/) continue
                if (line[i] ~ /vgpreload|libc\.so|ld-linux|vg_replace/) continue
                if (line[i] ~ /\([a-z0-9_]+\.c:[0-9]+\)$/) { print "FAILED " name ":\n" $0 "\n"; found = 1 }
                break
            }
        }
        END { exit found }' || bad=1
    grep -q 'ERROR SUMMARY' "$name".[0-9]* || { echo "FAILED $name: valgrind did not end"; bad=1; }
}
run train train --model mlp --hidden 8 --data synthetic:24 --batch-size 6 --n-epoch 2 --quiet --save weights
run eval eval --init weights --data synthetic:24 --json
run lenet train --model lenet --data synthetic:6 --batch-size 4 --max-steps 1 --valid-split 0 --quiet --overwrite
[ $bad -eq 0 ] && echo 'valgrind: clean'
exit $bad
