#!/bin/sh
# segmentation.sh BUILD: draws pavement with cracks, trains a thin U-Net on it on all devices, and shows what it finds on
# pictures that it has never seen. Leaves everything in BUILD/demo-segmentation; exit 1 if F1 is under 0.8 there.
set -eu
build=$1
dir=$build/demo-segmentation
rm -rf "$dir"
mkdir -p "$dir"

echo 'drawing 300 pictures to train on and 40 to test with'
"$build/demo/draw_cracks" "$dir/train" 300 128 1
"$build/demo/draw_cracks" "$dir/test" 40 128 2

"$build/dptrain" train --model-type vgg16 --width 8 --filters 8 --dropout 0 --data-dir "$dir/train" \
    --augment hflip,vflip --optimizer adamw --lr 0.003 --lr-step 12 --batch-size 8 --n-epoch 16 --print-freq 1000 \
    --model-dir "$dir/model"

best=$dir/model/model_best.safetensors
"$build/dptrain" eval --init "$best" --data-dir "$dir/test" --valid-split 0 --json >"$dir/test.json" 2>/dev/null
"$build/dptrain" predict --init "$best" --data "$dir/test/images" -o "$dir/predicted" --quiet >/dev/null
set --
for i in 0000 0001 0002 0003 0004; do
    set -- "$@" "$dir/test/images/pavement_$i.jpg" "$dir/test/masks/pavement_$i.png" "$dir/predicted/pavement_$i.png"
done
"$build/demo/side_by_side" "$dir/result.png" 3 "$@"
echo "picture, truth and prediction, side by side: $dir/result.png"
f1=$(sed 's/.*"f1": *\([0-9.e+-]*\).*/\1/' "$dir/test.json")
echo "test F1 $f1 on 40 pictures that were not trained on"
awk "BEGIN { exit !($f1 >= 0.8) }" || {
    echo 'F1 is under 0.8' >&2
    exit 1
}
