#!/bin/sh
# deps.sh [--probe] GROUP...: brings in what the groups (build cuda demo test check long browser) need and this machine lacks.
#
# As root it installs Debian's packages; otherwise it prints the one line to run and exits 1. With --probe it only names
# what is missing, and the command that brings it, and exits 1 if there is anything. What is asked is whether a header
# compiles and a library links, not whether a package is installed, so copies in other places count: CC, CPPFLAGS,
# LDFLAGS and PYTHON say where. DPTRAIN_UID stands in for the user's id in the tests of this script.
set -eu

CC=${CC:-gcc}
PYTHON=${PYTHON:-python3}
probe=
if [ "${1:-}" = --probe ]; then
    probe=yes
    shift
fi
driver=${CC%% *}
cpu=build # CPU=0 builds without CPU devices
[ "${CPU:-}" != 0 ] || cpu=none
compiler=${driver##*/}
omp=none # gcc brings its own omp.h
case $compiler in
clang*) omp=build ;;
gcc*) ;;
*) compiler=gcc ;;
esac

clang_version=$(clang -dumpversion 2>/dev/null || :) # before there is one: Debian 12's
clang_version=${clang_version%%.*}
clang_version=${clang_version:-14}

# group | package | how to tell | what it is
needs="
build | $compiler | command $driver | the C compiler ($driver)
build | libc6-dev | header stdio.h | the C library (stdio.h)
$cpu | libdnnl-dev | header oneapi/dnnl/dnnl.h -ldnnl | oneDNN (oneapi/dnnl/dnnl.h), arithmetic of CPU devices
build | libjansson-dev | header jansson.h -ljansson | Jansson (jansson.h), JSON
build | libjpeg62-turbo-dev | header jerror.h -ljpeg | libjpeg-turbo (jpeglib.h), photographs
build | libpng-dev | header png.h -lpng | libpng (png.h), masks and pictures
build | zlib1g-dev | header zlib.h -lz | zlib (zlib.h), compressed data sets
$omp | libomp-dev | header omp.h | OpenMP for clang (omp.h)
cuda | g++ | command g++ | the C++ compiler (g++), which nvcc calls; CUDA=0 builds without
demo | dataset-fashion-mnist | file /usr/share/datasets/fashion-mnist | Fashion-MNIST, the images that 'make demo' trains on
test | check | header check.h -lcheck | Check (check.h), unit tests
test | dataset-fashion-mnist | file /usr/share/datasets/fashion-mnist | Fashion-MNIST, for tests of its reader
test | python3 | python json,argparse,array,tempfile | Python ($PYTHON), the comparison with PyTorch
check | pkg-config | command pkg-config | pkg-config, for programs on the library
check | clang | command clang | clang, the second compiler
check | libclang-rt-$clang_version-dev | fuzzer | libFuzzer and the sanitizers of clang, for fuzzing
check | libomp-dev | clang-header omp.h | OpenMP for clang (omp.h)
check | clang-format | command clang-format | clang-format, the formatter
check | shellcheck | command shellcheck | shellcheck, the linter of scripts
long | valgrind | command valgrind | valgrind, for a short run
browser | chromium | command chromium | Chromium, to look at reports with
"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM

compiles() { # compiles COMPILER HEADER [LIBRARY]
    printf '#include <%s>\nint main(void) { return 0; }\n' "$2" >"$scratch/probe.c"
    # shellcheck disable=SC2086 # flags are words
    $1 ${CPPFLAGS:-} "$scratch/probe.c" ${LDFLAGS:-} ${3:-} -o "$scratch/probe" </dev/null >/dev/null 2>&1
}

present() { # present KIND ARGUMENT...
    case $1 in
    command) command -v "$2" >/dev/null 2>&1 ;;
    header) compiles "$CC" "$2" "${3:-}" ;;
    clang-header) compiles clang "$2" ;;
    fuzzer)
        echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }' >"$scratch/probe.c"
        clang -fsanitize=fuzzer,address,undefined "$scratch/probe.c" -o "$scratch/probe" >/dev/null 2>&1
        ;;
    file) [ -e "$2" ] ;;
    python) "$PYTHON" -c "import $2" </dev/null >/dev/null 2>&1 ;;
    esac
}

wanted=" $* "
missing=
while IFS='|' read -r group package how what; do
    group=${group% } package=${package# } package=${package% } what=${what# }
    case $wanted in *" $group "*) ;; *) continue ;; esac
    case " $missing " in *" $package "*) continue ;; esac
    # shellcheck disable=SC2086 # words
    if ! present $how; then
        echo "missing: $what" >&2
        missing="${missing:+$missing }$package"
    fi
done <<LIST
$needs
LIST
[ -n "$missing" ] || exit 0

install="apt-get install --no-install-recommends $missing"
if [ -n "$probe" ]; then
    echo "To install: run 'make deps', or as root '$install'" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "There is no apt-get here. Debian's names for what is missing: $missing" >&2
    exit 1
fi
if [ "${DPTRAIN_UID:-$(id -u)}" -ne 0 ]; then
    echo "To install, run: sudo $install" >&2
    exit 1
fi
echo "installing: $missing"
export DEBIAN_FRONTEND=noninteractive
# An update that fails may leave lists that are good enough; the installation tells.
apt-get update >"$scratch/log" 2>&1 || :
# shellcheck disable=SC2086 # a list of words
if ! apt-get install -y --no-install-recommends $missing >>"$scratch/log" 2>&1; then
    tail -n 20 "$scratch/log" >&2
    echo "apt-get could not install: $missing" >&2
    exit 1
fi
