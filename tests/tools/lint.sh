#!/bin/sh
# lint.sh: rules of the source tree that no compiler checks. Prints every breach; exit 1 if there is one.
set -u
cd "$(dirname "$0")/../.." || exit 2
bad=0
report() { # report RULE BREACHES
    [ -n "$2" ] || return
    echo "lint: $1"
    printf '%s\n' "$2" | sed 's/^/  /'
    bad=1
}

# Arrows between folders point down only: a folder, and what it may include beside itself and the public headers.
arrows='
base:
device: base
io: base
optim: base device
nn: base device
models: base nn
cpu: base device
data: base io
parallel: base device nn optim
report: base io
train: base io
bench: base
cli: base
'
for folder in src/*/; do
    folder=${folder#src/}
    folder=${folder%/}
    set -- "src/$folder"/*.[ch]
    [ -e "$1" ] || continue
    if ! below=$(printf '%s' "$arrows" | grep "^$folder:"); then
        report "src/$folder has no entry in the list of arrows in lint.sh" "src/$folder"
        continue
    fi
    allowed=$(echo "dptrain $folder${below#*:}" | tr -s ' ' '|')
    # The one file that knows the implementations of the device contract: it opens the backend.
    report "src/$folder may include only:${below#*:} and the public headers" \
        "$(grep -HnE '^[[:space:]]*#[[:space:]]*include "' "$@" | grep -vE "\"($allowed)/" |
            grep -vE '^src/parallel/context\.c:[0-9]+:#include "(cpu/cpu|cuda/cuda)\.h"$')"
done
report "public headers include only each other" \
    "$(grep -HnE '^[[:space:]]*#[[:space:]]*include "' include/dptrain/*.h | grep -v '"dptrain/')"
report "only cuda/ includes CUDA's headers" \
    "$(grep -HnE '#[[:space:]]*include <(cuda|cublas|cudnn|nccl|nvml)' src/*/*.[ch] include/dptrain/*.h)"
report "only src/cpu/onednn.* includes oneDNN" \
    "$(grep -HnE '#[[:space:]]*include [<"](oneapi|dnnl)' src/*/*.[ch] include/dptrain/*.h | grep -v '^src/cpu/onednn\.')"

# code FILE...: the lines of C files without comments and strings, as FILE:LINE:text.
code() {
    awk '
        FNR == 1 { comment = 0 }
        {
            text = $0
            gsub(/\\\\|\\"/, "", text)
            gsub(/"[^"]*"/, "\"\"", text)
            out = ""
            while (text != "") {
                if (comment) {
                    at = index(text, "*/")
                    if (!at) break
                    text = substr(text, at + 2); comment = 0
                } else {
                    at = index(text, "/*")
                    if (!at) { out = out text; break }
                    out = out substr(text, 1, at - 1)
                    text = substr(text, at + 2); comment = 1
                }
            }
            sub(/\/\/.*/, "", out)
            if (out ~ /[^[:space:]]/) print FILENAME ":" FNR ":" out
        }' "$@"
}
library=$(find src -name '*.[ch]' ! -path 'src/cli/*')
# shellcheck disable=SC2086 # a list of files without spaces
lines=$(code $library)
report "only src/cli prints, and no one but main ends the program" "$(printf '%s\n' "$lines" |
    grep -E '(^|[^[:alnum:]_])((v?printf|puts|putchar|perror|psignal|exit|_exit|_Exit|quick_exit|abort|assert)[[:space:]]*\(|std(out|err)([^[:alnum:]_]|$)|STD(OUT|ERR)_FILENO)')"
report "the library's host memory comes from base/memory.h" "$(printf '%s\n' "$lines" |
    grep -E '(^|[^[:alnum:]_])(malloc|calloc|realloc|aligned_alloc|posix_memalign|strn?dup|v?asprintf)[[:space:]]*\(' |
    grep -v '^src/base/memory\.c:')"
report "every launcher of kernels.h is in the table of tests/cuda/kernel_speed.c" "$(
    sed -n 's/^cudaError_t \(dp_[a-z0-9_]*\)(.*/\1/p' cuda/kernels/kernels.h | while read -r launcher; do
        grep -q "{\"${launcher}[\",]" tests/cuda/kernel_speed.c || echo "$launcher"
    done)"
report "no left-overs" "$(grep -nwE 'TODO|FIXME|XXX' -r src include tests Makefile \
    --include='*.[ch]' --include='*.py' --include=Makefile)"
exit $bad
