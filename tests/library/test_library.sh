#!/bin/bash
# test_library.sh BUILD [SETTING...]: the library, its headers and `make install` as their users meet them. BUILD has an
# uninstrumented build, made with those settings; MAKE and CC are the tools. Nothing is installed but under a directory
# of the test's own. Prints what failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=$1
settings=("BUILD=$build" "${@:2}")
MAKE=${MAKE:-make}
CC=${CC:-gcc}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD DESTDIR PREFIX
bad=0
failed() {
    echo "FAILED $*"
    bad=1
}
same() { # same NAME EXPECTED ACTUAL: two lists, one a line
    [ "$2" = "$3" ] && [ -n "$2" ] && return
    failed "$1 (< wanted, > found):"
    diff <(printf '%s\n' "$2") <(printf '%s\n' "$3")
}
code() { # the text of C files without comments
    "$CC" -w -fpreprocessed -dD -E -P "$1"
}

# ---- installing ----

prefix=/opt/dptrain
root=$tmp/root
dest=$root$prefix
"$MAKE" -j"$(nproc)" --no-print-directory "${settings[@]}" PREFIX=$prefix DESTDIR="$root" install >"$tmp/install" 2>&1 ||
    failed "make install: $(cat "$tmp/install")"
version=$("$dest/bin/dptrain" --version)
version=${version#dptrain }
listed=$(cd "$dest" && find . ! -type d ! -name libdptrain_cuda.so | sort)
same 'what is installed' "$(sort <<LIST
./bin/dptrain
$(printf './%s\n' include/dptrain/*.h)
./lib/libdptrain.a
./lib/libdptrain.so
./lib/libdptrain.so.0
./lib/libdptrain.so.$version
./lib/pkgconfig/dptrain.pc
./share/bash-completion/completions/dptrain
./share/man/man1/dptrain.1
LIST
)" "$listed"

# ---- what leaves the shared library, and what does not happen in either ----

declared=$(for header in include/dptrain/*.h; do code "$header"; done |
    grep -oE '\bdp_[a-z0-9_]+(\(|\[\])' | tr -d '([]' | sort -u)
exported=$(nm -D --defined-only "$dest/lib/libdptrain.so" | awk '{ print $3 }' | sort -u)
same 'the shared library exports what the public headers declare' "$declared" "$exported"
same 'its soname has the major version' 'libdptrain.so.0' \
    "$(objdump -p "$dest/lib/libdptrain.so" | awk '$1 == "SONAME" { print $2 }')"

nm -A -u "$dest/lib/libdptrain.a" >"$tmp/undefined"
grep -qE ' U pthread_create$' "$tmp/undefined" || failed 'nm lists the symbols that the library uses'
never='exit _exit _Exit quick_exit abort __assert_fail __stack_chk_abort stdout stderr stdin printf vprintf
    __printf_chk __vprintf_chk puts putchar perror psignal err errx warn warnx getchar gets signal sigaction raise
    setenv putenv unsetenv setlocale chdir umask atexit on_exit srand rand random drand48 strtok getopt getopt_long'
for symbol in $never; do
    ! grep -qE " U $symbol\$" "$tmp/undefined" ||
        failed "the library uses $symbol: $(grep -E " U $symbol\$" "$tmp/undefined" | head -n 1)"
done
# libjpeg and libpng leave a damaged file by longjmp; nothing else may.
! grep -E ' U (__)?longjmp(_chk)?$' "$tmp/undefined" | grep -vE ':(jpeg|png)\.o:' ||
    failed 'the library uses longjmp beside the readers of pictures'
# A process of its own that tries a link between GPUs, and hangs, is killed; no other.
! grep -E ' U kill$' "$tmp/undefined" | grep -v ':trial.o:' || failed 'the library sends signals'
# Tables of pointers that only the loader writes to are in .data.rel.ro.
objdump -t "$dest/lib/libdptrain.a" >"$tmp/symbols"
grep -q '\.data\.rel\.ro' "$tmp/symbols" || failed 'objdump shows the sections of symbols'
grep -E '[[:space:]](\.t?data|\.t?bss|\*COM\*|\.(t?data|t?bss)\.[^[:space:]]*)[[:space:]]' "$tmp/symbols" |
    grep -vE '[[:space:]]\.data\.rel\.ro|[[:space:]]\.(t?data|t?bss)[^[:space:]]*[[:space:]]+0+[[:space:]]+\.(t?data|t?bss)' >"$tmp/writable"
[ ! -s "$tmp/writable" ] || failed "the library has variables of its own: $(head -n 5 "$tmp/writable")"

# ---- using what was installed ----

# Every header stands alone, in C and in C++, and says what it promises; its example compiles with what is installed.
command -v pkg-config >/dev/null || failed 'pkg-config is missing (make deps)'
export PKG_CONFIG_PATH=$dest/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
same 'pkg-config knows the version' "$version" "$(pkg-config --modversion dptrain)"
read -ra flags <<<"$(pkg-config --cflags dptrain)"
read -ra libs <<<"$(pkg-config --libs dptrain)"
strict=(-std=c17 -Wall -Wextra -Wstrict-prototypes -Werror)
examples=0
for header in "$dest"/include/dptrain/*.h; do
    name=dptrain/${header##*/}
    promise=UNSTABLE
    case $name in */engine.h | */model.h | */data.h | */train.h) promise=STABLE ;; esac
    head -n 2 "$header" | grep -qE "(^|[ .])${promise}[.:]" || failed "$name does not say that it is $promise"
    echo "#include <$name>" >"$tmp/alone.c"
    "$CC" "${strict[@]}" -pedantic -fsyntax-only "${flags[@]}" "$tmp/alone.c" || failed "$name does not stand alone"
    if command -v g++ >/dev/null; then
        g++ -x c++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only "${flags[@]}" "$tmp/alone.c" ||
            failed "$name is not for C++"
    fi
    { # the first comment's lines that are indented by five
        echo "#include <$name>"
        awk '/\*\// { exit } /^ \*     / || /^ \*$/ { print substr($0, 8) }' "$header"
    } >"$tmp/example.c"
    [ "$(grep -c '' "$tmp/example.c")" -gt 4 ] && examples=$((examples + 1))
    "$CC" "${strict[@]}" -Wno-unused-but-set-variable -c "${flags[@]}" "$tmp/example.c" -o "$tmp/example.o" ||
        failed "the example of $name does not compile"
done
[ $examples -eq "$(find include/dptrain -name '*.h' | wc -l)" ] || failed "only $examples headers have an example"

# A program of a user's own, on either library.
program=tests/library/example.c
[ "$(wc -l <$program)" -lt 100 ] || failed "$program has 100 lines or more"
# What the README shows of it is in it.
shown=$(awk '/^## As a library/ { on = 1 } /^## How/ { on = 0 } on && /^```$/ { c = 0 } on && c; on && /^```c$/ { c = 1 }' README.md)
[ -n "$shown" ] || failed 'the README shows nothing of the example'
while IFS= read -r line; do
    grep -qxF -- "$line" $program || failed "the README shows a line that $program does not have: $line"
done <<<"$shown"
trains() { # trains NAME COMMAND...: ends with a loss that says that something was learnt, on two devices
    local out loss
    out=$("${@:2}" 2>&1) || failed "$1: exit $?: $out"
    loss=$(sed -n 's/^step 399  loss \([0-9.]*\)  on 2 devices$/\1/p' <<<"$out")
    awk -v loss="${loss:-9}" 'BEGIN { exit !(loss < 0.1) }' || failed "$1 has learnt nothing: $out"
}
if "$CC" "${strict[@]}" "${flags[@]}" $program "${libs[@]}" -lm -o "$tmp/shared"; then
    trains 'the example on the shared library' env LD_LIBRARY_PATH="$dest/lib" "$tmp/shared"
    objdump -p "$tmp/shared" | grep -q 'NEEDED.*libdptrain.so.0$' || failed 'it does not need libdptrain.so.0'
else
    failed 'the example does not build on the shared library'
fi
read -ra private <<<"$(pkg-config --static --libs dptrain | sed 's/-ldptrain/-l:libdptrain.a/')"
if "$CC" "${strict[@]}" "${flags[@]}" $program "${private[@]}" -lm -o "$tmp/static"; then
    trains 'the example on the static library' "$tmp/static"
else
    failed 'the example does not build on the static library'
fi

# The installed program trains, finds its data, and finds the CUDA backend in ../lib: here a file that is none, unless
# the real one is there.
cd "$tmp" || exit 2
run=("$dest/bin/dptrain" train --model linear --max-steps 2 --model-dir m --overwrite --quiet)
"${run[@]}" --device cpu --data synthetic:64 >"$tmp/out" 2>&1 || failed "the installed program: $(cat "$tmp/out")"
if [ -d /usr/share/datasets/fashion-mnist ]; then
    "${run[@]}" --device cpu >"$tmp/out" 2>&1 || failed "the installed program on Fashion-MNIST: $(cat "$tmp/out")"
fi
[ -e "$dest/lib/libdptrain_cuda.so" ] || echo none >"$dest/lib/libdptrain_cuda.so"
out=$("${run[@]}" --device cuda --data synthetic:64 2>&1)
[[ $out != *'neither beside'* ]] || failed "the CUDA backend in ../lib is not looked for: $out"
cd "$OLDPWD" || exit 2

"$MAKE" --no-print-directory "${settings[@]}" PREFIX=$prefix DESTDIR="$root" uninstall >"$tmp/uninstall" 2>&1 ||
    failed "make uninstall: $(cat "$tmp/uninstall")"
left=$(find "$root" ! -type d)
[ -z "$left" ] || failed "make uninstall leaves $left"
[ ! -e "$dest/include/dptrain" ] || failed 'make uninstall leaves include/dptrain'

[ $bad -eq 0 ] && echo 'library: all as expected'
exit $bad
