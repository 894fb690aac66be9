#!/bin/bash
# test_makefile.sh: the Makefile, deps.sh and lint.sh as a user meets them, in a copy of the tree with machines that
# lack things, and fake tools. Nothing is installed. Prints what failed.
set -u
cd "$(dirname "$0")/../.." || exit 2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
tree=$tmp/tree
mkdir "$tree"
tar -c --exclude=./build --exclude=./.git --exclude=./tests/parity/cases . | tar -x -C "$tree"
cd "$tree" || exit 2
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD CC CFLAGS CPPFLAGS LDFLAGS LIBS WERROR SANITIZE DEBUG CUDA_HOME CUDNN_HOME CUDA_ARCH \
    PREFIX DESTDIR
export CUDA=0
bad=0
failed() {
    echo "FAILED $*"
    bad=1
}
expect() { # expect NAME STATUS TEXT COMMAND...: exit status, and a text in the output ("!TEXT": one that is not)
    local name=$1 status=$2 text=$3 got out found=no
    shift 3
    out=$("$@" 2>&1)
    got=$?
    [[ $out == *"${text#!}"* ]] && found=yes
    [ "$text" = "${text#!}" ] && [ $found = yes ] && found=right
    [ "$text" != "${text#!}" ] && [ $found = no ] && found=right
    if [ "$got" -ne "$status" ] || [ $found != right ]; then
        failed "$name: exit $got (want $status), or the output is not as '$text':"
        echo "$out" | tail -n 5
    fi
}

# A machine that has make and what every Debian has: no compiler, no Python.
bare=$tmp/bare
mkdir "$bare"
for tool in make sh bash echo cat mkdir mktemp printf rm touch id tr; do
    ln -s "$(type -P $tool)" "$bare/$tool"
done
expect 'help without a compiler' 0 'make demo' env PATH="$bare" make help
expect 'a missing compiler is named' 2 'missing: the C compiler (gcc)' env PATH="$bare" make
expect 'and the command that brings it' 2 "run 'make deps', or as root 'apt-get install --no-install-recommends gcc libc6-dev libdnnl-dev" \
    env PATH="$bare" make
expect 'a chosen compiler that is missing is named' 2 'missing: the C compiler (no-such-cc)' make CC=no-such-cc BUILD=b0
expect 'a machine without apt-get' 2 "Debian's names for what is missing: gcc" env PATH="$bare" make deps

# Compilers that do not find one header or one library.
lacks() { # lacks NAME PATTERN: a compiler in $tmp/NAME that fails if its arguments or its source have PATTERN
    cat >"$tmp/$1" <<COMPILER
#!/bin/sh
for argument in "\$@"; do
    case \$argument in
    '$2') exit 1 ;;
    *.c) ! grep -qFe '$2' "\$argument" || exit 1 ;;
    esac
done
COMPILER
    chmod +x "$tmp/$1"
}
lacks gcc-no-header oneapi/dnnl/dnnl.h
lacks gcc-no-library -lz
expect 'a missing header is named' 2 'missing: oneDNN (oneapi/dnnl/dnnl.h)' make CC="$tmp/gcc-no-header" BUILD=b1
expect 'with the command that brings it' 2 "or as root 'apt-get install --no-install-recommends libdnnl-dev'" \
    make CC="$tmp/gcc-no-header" BUILD=b1
expect 'a missing library is named' 2 'missing: zlib (zlib.h)' make CC="$tmp/gcc-no-library" BUILD=b1
expect 'no source is compiled before' 2 '!CC  ' make -j4 CC="$tmp/gcc-no-header" BUILD=b1

# CUDA: not there, there in part, there.
toolkit=$tmp/toolkit
on_toolkit=(env CUDA= "PATH=$bare" "CUDA_HOME=$toolkit" "CUDNN_HOME=$toolkit")
expect 'no toolkit' 0 "CUDA: no (nvcc is neither on PATH nor in $toolkit/bin: set CUDA_HOME)" "${on_toolkit[@]}" make cuda-report
expect 'an error where it was asked for' 2 'cannot be built' "${on_toolkit[@]}" CUDA=1 make cuda-report
mkdir -p "$toolkit"/{bin,lib64,include}
touch "$toolkit"/{bin/nvcc,lib64/libcudart.so,lib64/libcublas.so,include/cublas_v2.h}
expect 'a toolkit without cuDNN' 0 'CUDA: no (no cuDNN 9' "${on_toolkit[@]}" make cuda-report
touch "$toolkit"/{lib64/libcudnn.so,include/cudnn_graph.h}
expect 'a whole toolkit' 0 "CUDA: yes ($toolkit/bin/nvcc, cuDNN in $toolkit/lib64" "${on_toolkit[@]}" make cuda-report
expect 'that was switched off' 0 'CUDA: no (switched off by CUDA=0)' "${on_toolkit[@]}" CUDA=0 make cuda-report
expect 'whose C++ compiler is missing' 2 'missing: the C++ compiler (g++)' "${on_toolkit[@]}" make -j4
expect 'which is found before sources are compiled' 2 '!CC  ' "${on_toolkit[@]}" make -j4
expect 'and is not asked for without CUDA' 2 '!g++' "${on_toolkit[@]}" CUDA=0 make

# A toolkit of which every part is a package of Python's.
packages=$tmp/site-packages/nvidia
mkdir -p "$packages"/{cuda_nvcc/bin,cuda_runtime/lib,cublas/lib,cublas/include,cudnn/lib,cudnn/include}
on_packages=(env CUDA= "PATH=$bare" "CUDA_PYTHON=$packages" "CUDA_HOME=$packages/cuda_nvcc")
touch "$packages"/{cuda_nvcc/bin/nvcc,cuda_runtime/lib/libcudart.so.12,cublas/lib/libcublas.so.12,cublas/include/cublas_v2.h}
touch "$packages"/cudnn/{lib/libcudnn.so.9,include/cudnn_graph.h}
expect 'packages with all of it' 0 "CUDA: yes ($packages/cuda_nvcc/bin/nvcc" "${on_packages[@]}" make cuda-report
expect 'whose libraries are linked by their own names' 0 '-l:libcublas.so.12 -l:libcudart.so.12' \
    "${on_packages[@]}" make -pn cuda-report
expect 'CPU=0 asks for no oneDNN' 2 '!libdnnl-dev' env PATH="$bare" make CPU=0

# make deps, with a compiler that finds nothing and an apt-get that only takes notes.
fake=$tmp/fake
mkdir "$fake"
printf '#!/bin/sh\nexit 1\n' >"$fake/gcc"
printf '#!/bin/sh\necho "$*" >>"%s"\n' "$tmp/apt.log" >"$fake/apt-get"
chmod +x "$fake/gcc" "$fake/apt-get"
on_fake=(env "PATH=$fake:$PATH")
expect 'without root the line is printed' 1 \
    'run: sudo apt-get install --no-install-recommends libc6-dev libdnnl-dev libjansson-dev libjpeg62-turbo-dev libpng-dev zlib1g-dev' \
    "${on_fake[@]}" DPTRAIN_UID=1000 tests/tools/deps.sh build
expect 'so it is by make' 2 'run: sudo apt-get install' "${on_fake[@]}" DPTRAIN_UID=1000 make deps
expect 'demo stops there' 2 '!CC  ' "${on_fake[@]}" DPTRAIN_UID=1000 make demo
[ ! -e "$tmp/apt.log" ] || failed 'apt-get ran without root'
expect 'as root it installs' 0 'installing: libc6-dev libdnnl-dev libjansson-dev libjpeg62-turbo-dev libpng-dev zlib1g-dev' \
    "${on_fake[@]}" DPTRAIN_UID=0 tests/tools/deps.sh build
[ "$(cat "$tmp/apt.log")" = 'update
install -y --no-install-recommends libc6-dev libdnnl-dev libjansson-dev libjpeg62-turbo-dev libpng-dev zlib1g-dev' ] || failed "apt-get was asked: $(cat "$tmp/apt.log")"
rm "$tmp/apt.log"
expect 'probing installs nothing' 1 "run 'make deps'" "${on_fake[@]}" DPTRAIN_UID=0 tests/tools/deps.sh --probe build
[ ! -e "$tmp/apt.log" ] || failed 'apt-get ran for a probe'
printf '#!/bin/sh\necho "E: no such package"\nexit 100\n' >"$fake/apt-get"
expect 'a failing installation is told' 1 'E: no such package' "${on_fake[@]}" DPTRAIN_UID=0 tests/tools/deps.sh build

# Rebuilding: nothing when nothing changed; what includes a changed header; everything when the flags change.
object=b2/src/base/text.o
expect 'an object is built' 0 'CC   src/base/text.c' make BUILD=b2 $object
expect 'a second make does nothing' 0 'is up to date' make BUILD=b2 $object
touch -d '+2 seconds' src/base/text.h
expect 'a changed header rebuilds' 0 'CC   src/base/text.c' make BUILD=b2 $object
touch -d '-1 hour' src/base/text.h
expect 'and once is enough' 0 'is up to date' make BUILD=b2 $object
expect 'changed flags rebuild' 0 'CC   src/base/text.c' make BUILD=b2 DEBUG=1 $object
expect 'settings of the user are added' 0 'CC   src/base/text.c' make BUILD=b2 CPPFLAGS=-DEXAMPLE CFLAGS=-O1 $object
expect 'flags with quotes work' 0 'CC   src/base/text.c' make BUILD=b2 CFLAGS='-DEXAMPLE="1"' $object
expect 'and are remembered' 0 'is up to date' make BUILD=b2 CFLAGS='-DEXAMPLE="1"' $object
rm -rf src tests/unit tests/ops tests/cli bench
mkdir -p src/base src/cli include/dptrain
echo 'int one(void) { return 1; }' >src/base/one.c
echo 'int two(void) { return 2; }' >src/base/two.c
printf 'int one(void);\nint main(void) { return one() - 1; }\n' >src/cli/main.c
expect 'the program is built' 0 'LINK b3/dptrain' make -j4 BUILD=b3
expect 'all of it only once' 0 '!CC  ' make -j4 BUILD=b3
b3/dptrain || failed 'the program does not run'
touch b3/libdptrain_cuda.so
echo >>src/cli/main.c
expect 'built anew without CUDA' 0 'LINK b3/dptrain' make -j4 BUILD=b3
[ ! -e b3/libdptrain_cuda.so ] || failed 'the CUDA backend of an earlier build stays beside a program that it may not fit'

# Installing what was built, with and without a stage, over an older one, where it cannot be; and taking it away.
# shellcheck disable=SC2016 # the program that it makes expands it
printf '#!/bin/sh\necho "manual of $1"\n' >src/cli/manual.sh
chmod +x src/cli/manual.sh
echo completion >src/cli/completion.bash
there() { # there NAME DIRECTORY: the program, both libraries, and the rest are in it
    local file
    for file in bin/dptrain lib/libdptrain.a lib/libdptrain.so lib/pkgconfig/dptrain.pc include/dptrain/engine.h \
        share/man/man1/dptrain.1 share/bash-completion/completions/dptrain; do
        [ -s "$2/$file" ] || failed "$1: $file is not in it"
    done
}
gone() { # gone NAME DIRECTORY: no file is left
    [ -z "$(find "$2" ! -type d)" ] || failed "$1: left are $(find "$2" ! -type d)"
}
expect 'help names the place' 0 'PREFIX=/usr/local' make help
expect 'a staged installation' 0 "installed in $tmp/stage/usr" make BUILD=b3 DESTDIR="$tmp/stage" PREFIX=/usr install
there 'a staged installation' "$tmp/stage/usr"
grep -qx 'prefix=/usr' "$tmp/stage/usr/lib/pkgconfig/dptrain.pc" || failed 'dptrain.pc knows the stage, not the prefix'
grep -qx 'manual of b3/dptrain' "$tmp/stage/usr/share/man/man1/dptrain.1" || failed 'the manual is not that of the program'
touch "$tmp/stage/usr/bin/other" "$tmp/stage/usr/lib/libdptrain_cuda.so"
expect 'once more' 0 '!CC  ' make BUILD=b3 DESTDIR="$tmp/stage" PREFIX=/usr install
[ ! -e "$tmp/stage/usr/lib/libdptrain_cuda.so" ] || failed 'an older CUDA backend stays beside a program without one'
touch "$tmp/stage/usr/lib/libdptrain_cuda.so"
expect 'and away' 0 "removed from $tmp/stage/usr" make BUILD=b3 DESTDIR="$tmp/stage" PREFIX=/usr uninstall
rm "$tmp/stage/usr/bin/other" || failed 'uninstall removed what others installed'
gone 'uninstall' "$tmp/stage"
expect 'uninstall where nothing is' 0 'removed from' make BUILD=b3 DESTDIR="$tmp/nowhere" uninstall
expect 'without a stage' 0 "installed in $tmp/prefix" env PREFIX="$tmp/prefix" make BUILD=b4 -j4 install
there 'without a stage' "$tmp/prefix"
expect 'and away again' 0 'removed' env PREFIX="$tmp/prefix" make BUILD=b4 uninstall
gone 'without a stage' "$tmp/prefix"
echo 'a file' >"$tmp/file"
expect 'a prefix that is no directory' 2 "$tmp/file" make BUILD=b3 PREFIX="$tmp/file" install
rm src/base/two.c
expect 'a removed source leaves the library' 0 'AR   b3/libdptrain.a' make BUILD=b3
ar t b3/libdptrain.a | grep -q two.o && failed 'two.o is still in the library'
printf 'int one(void);\nint unused;\nint main(void) { int x; return one() - 1; }\n' >src/cli/main.c
expect 'WERROR=1 makes warnings errors' 2 'unused variable' make BUILD=b3 WERROR=1

# Rules of the source tree: each breach is found, and nothing else.
rm -rf tests/unit tests/ops tests/cli tests/cuda_emulation bench include/dptrain
mkdir -p include/dptrain src/nn src/cpu src/parallel tests/unit bench
rm src/cli/main.c
printf '#include "dptrain/x.h"\n' >include/dptrain/x.h
good() {
    printf '#include "base/error.h"\n/* exit(1), printf() and stderr\n * in comments */\nconst char *s = "abort() \\" stdout";\n' >src/nn/good.c
    printf '#include "cpu/cpu.h"\n' >src/parallel/context.c
    printf 'void f(void) { printf("x"); }\n' >src/cli/good.c
    printf 'int snprintf(char *, int), dp_calloc(int), my_exit(int);\n' >src/cpu/good.c
}
good
expect 'a tree that keeps the rules' 0 '' tests/tools/lint.sh
breach() { # breach FILE LINE TEXT
    printf '%s\n' "$2" >"$1"
    expect "lint finds $2 in $1" 1 "$3" tests/tools/lint.sh
    rm "$1"
    good
}
breach src/nn/bad.c '#include "cpu/cpu.h"' 'src/nn may include only'
breach src/base/bad.h '#include "device/device.h"' 'src/base may include only'
breach src/parallel/bad.c '#include "cpu/cpu.h"' 'src/parallel may include only'
breach include/dptrain/bad.h '#include "base/error.h"' 'public headers include only each other'
breach src/cpu/bad.c '#include <cuda_runtime.h>' 'only cuda/ includes'
breach src/nn/bad.c '#include <oneapi/dnnl/dnnl.h>' 'includes oneDNN'
breach src/nn/bad.c 'void f(void) { printf("x"); }' 'only src/cli prints'
breach src/nn/bad.c 'void f(void) { fputs("x", stderr); }' 'only src/cli prints'
breach src/nn/bad.c 'void f(void) { exit(1); } /* ends */' 'only src/cli prints'
breach src/cpu/bad.c 'void *f(void) { return malloc(1); }' 'host memory'
breach src/cpu/bad.c "int x; // TO""DO" 'left-overs'
mkdir src/newcomer
echo 'int x;' >src/newcomer/x.c
expect 'a folder without a rule is told' 1 'src/newcomer has no entry' tests/tools/lint.sh

[ $bad -eq 0 ] && echo 'makefile: all as expected'
exit $bad
