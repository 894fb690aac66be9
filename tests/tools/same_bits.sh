#!/bin/bash
# same_bits.sh PROGRAM FOLDER OPTION...: two runs of `PROGRAM train` with the same options leave the same weights, bit by
# bit, in FOLDER.
set -eu
program=$1 folder=$2
shift 2
for run in a b; do
    "$program" train "$@" --quiet --overwrite --model-dir "$folder/bits-$run" --save "$folder/bits-$run.safetensors"
done
cmp "$folder/bits-a.safetensors" "$folder/bits-b.safetensors"
