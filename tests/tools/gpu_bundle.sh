#!/bin/sh
# gpu_bundle.sh FOLDER: puts into FOLDER/include and FOLDER/lib the headers and static libraries, about 2 MB, of what
# `make gpu-check` needs beside gcc, g++ and CUDA, from the development packages of this machine. The folder serves any
# machine of the same architecture with a C library that is not older.
set -eu
CC=${CC:-gcc}
[ $# -eq 1 ] || exit 2
rm -rf "$1"
mkdir -p "$1/include" "$1/lib"
# The headers that belong to the libraries, wherever this machine has them.
# shellcheck disable=SC2086 # flags are words
headers=$(printf '#include <%s>\n' stdio.h jansson.h zlib.h png.h jpeglib.h jerror.h check.h |
    $CC ${CPPFLAGS:-} -M -E -x c - | tr ' ' '\n' |
    grep -E '/(jansson|jansson_config|zlib|zconf|png|pngconf|pnglibconf|jpeglib|jconfig|jmorecfg|jerror|check|check_stdint)\.h$')
for header in $headers; do
    cp "$header" "$1/include"
done
for library in jansson z png jpeg check subunit; do
    file=$($CC -print-file-name=lib$library.a)
    if [ ! -f "$file" ]; then
        echo "gpu-bundle: lib$library.a is missing" >&2
        exit 1
    fi
    cp -L "$file" "$1/lib"
done
echo "$1: copy it to build/gpu-bundle of the tree on the machine with the GPU, and run make gpu-check there"
