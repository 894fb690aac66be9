/* What the tests of pictures share. */
#ifndef DP_TESTS_CLI_PICTURES_H
#define DP_TESTS_CLI_PICTURES_H

#include "harness.h"
#include "io/image.h"

enum { SIDE = 32 }; /* of a picture */

#define SMALL_UNET                                                                            \
    "train --model-type vgg16 --width 4 --filters 4 --dropout 0 --optimizer adamw --lr 0.01 " \
    "--batch-size 8 --logical-devices 2"

#define PREDICT "predict --init model/model_best.safetensors "

/* Dark, with a bright disc: the mask. mask_path: NULL for the picture alone. */
void write_pair(const char *image_path, const char *mask_path, int height, int width, int n);
/* data/images/pNN.png and data/masks/pNN.png, SIDE by SIDE. */
void write_masks(int count);
/* Owner: the caller, dp_image_clear. */
dp_image read_picture(const char *path);

TCase *predict_case(void);

#endif
