#!/bin/bash
# same_bits.sh PROGRAM OPTION...: two runs of `PROGRAM train` with the same options leave the same weights, bit by bit.
set -eu
program=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for run in a b; do
    "$program" train "$@" --quiet --model-dir "$folder/$run" --save "$folder/$run.safetensors"
done
cmp "$folder/a.safetensors" "$folder/b.safetensors"
