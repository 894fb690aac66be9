/* A case in words: an input, then operations.
 *
 *     4x3x9x9 conv5,k3,s2,p1,relu pool,k3,s2,p1 linear10
 *
 * Input: batch and features, or batch, channels, height, width. conv, deconv and linear: outputs; nobias
 * leaves the bias out. k, s, p: kernel, stride, padding (k3x5 for unequal ones). avgpool3x2: adaptive, to
 * that size. dropout30 and dropout2d30: 30 percent, l2: the model's third. concat1, add1: the value before it
 * and value 1 (0 is the case's input, k the result of the k-th operation); bn,add1 adds value 1, too. "+" at
 * the end: gradients are added to what is there. "noinput" at the end: no gradient of the input (a network's
 * first layers). */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const correctness_cases[] = {
    /* linear: thin, wide, odd, batch 1, rows that collide in the cache, with and without everything */
    "1x1 linear1",
    "1x7 linear5,relu",
    "2x3 linear1,nobias",
    "5x13 linear17 +",
    "64x784 linear512,relu noinput",
    "33x512 linear512,relu",
    "40x512 linear512,relu +",
    "64x512 linear10",
    "3x2048 linear7,nobias,relu +",
    "32x1024 linear512",
    "7x1 linear300,relu",
    "128x33 linear65",
    "64x784 linear512,relu linear512,relu linear10 noinput",
    /* convolution: kernels 1, 3, 5, 7, strides 1, 2, paddings, channels around the vector widths */
    "1x1x1x1 conv1,k1",
    "1x1x5x5 conv1,k3,p1",
    "2x1x28x28 conv32,k5,p2,relu noinput",
    "3x1x28x28 conv6,k5,p2 + noinput",
    "3x1x12x11 conv20,k7,s2,p3,relu + noinput",
    "2x2x9x9 conv8,k1,relu noinput",
    "2x2x9x9 conv16,k2,s2 noinput",
    "2x3x10x10 conv24,k4,p1,nobias noinput",
    "2x3x11x9 conv40,k6,p2,s2,relu noinput",
    "2x4x13x8 conv17,k3,p1 + noinput",
    "3x3x17x15 conv5,k3,s2,p1,relu noinput",
    "2x3x16x16 conv64,k7,s2,p3,nobias noinput",
    "2x1x9x20 conv9,k3x5,p1x2,relu noinput",
    "2x1x9x30 conv9,k9,p4,relu noinput",
    "2x1x28x28 conv32,k5,p2,relu",
    "2x3x8x8 conv16,k3,p1,nobias",
    "2x4x8x8 conv8,k3,p1,relu +",
    "2x5x7x7 conv3,k3,p1",
    "3x8x9x9 conv16,k3,p1,relu",
    "3x16x9x9 conv8,k3,p1",
    "2x13x15x11 conv19,k3,p1,relu +",
    "2x32x14x14 conv64,k5,p2,relu",
    "2x32x14x14 conv64,k5,p2 +",
    "2x20x9x9 conv24,k1",
    "2x20x9x9 conv24,k1,s2,relu",
    "8x4x32x32 conv8,k1,s2,nobias",
    "8x3x32x32 conv4,k3,p1,nobias conv8,k1,s2,nobias",
    "2x3x8x8 conv12,k3,p1,nobias conv20,k1,s2,nobias",
    "2x3x8x8 conv24,k3,p1,nobias conv8,k1,s2,nobias",
    "2x3x8x8 conv4,k3,p1,nobias bn,relu conv8,k1,s2,nobias",
    "2x3x8x8 conv4,k3,p1 upsample conv8,k1,s2",
    "2x3x8x8 conv24,k3,p1 upsample conv8,k1,s2",
    "2x16x9x10 conv16,k3,s2,p1,nobias",
    "1x24x10x10 conv24,k5,s2",
    "2x64x8x8 conv64,k3,p1,relu",
    "1x17x7x7 conv33,k7,p3",
    "2x16x6x6 conv16,k5x1,p2x0",
    "2x16x7x7 conv1,k7",
    /* 3x3 kernels of stride 1: tiles that are full, cut off, at every border; channels that fill blocks and
     * pairs of them, and that do not; paddings */
    "16x16x4x4 conv16,k3,p1",
    "2x16x16x16 conv16,k3,p1,relu",
    "3x32x9x13 conv24,k3,p1,relu +",
    "4x40x8x8 conv32,k3,p1,nobias",
    "2x19x11x18 conv21,k3,p1 +",
    "2x24x14x15 conv40,k3,p0,relu",
    "2x16x11x12 conv17,k3,p2x1,nobias",
    "2x16x12x10 conv16,k3,p0x2 conv32,k3,p1,relu noinput",
    "7x64x8x8 conv64,k3,p1,nobias bn,relu conv64,k3,p1,nobias bn,add0,relu",
    "3x64x20x24 conv48,k3,p1,relu",
    /* 5x5 kernels of stride 1: the same */
    "16x24x2x2 conv24,k5,p2",
    "1x24x8x8 conv24,k5,p2,relu",
    "3x32x9x13 conv24,k5,p2,relu +",
    "2x29x11x10 conv37,k5,p1x4,nobias +",
    "2x40x9x12 conv24,k5,p0,relu",
    "2x24x7x8 conv33,k5,p3 conv24,k5,p2,relu noinput",
    /* pooling on the plain order and, behind a convolution, on the backend's own */
    "2x3x8x8 pool,k2,s2",
    "2x3x8x8 pool,k2,s2,relu",
    "1x1x7x9 pool,k2,s2",
    "2x5x11x13 pool,k3,s2,p1",
    "2x5x11x13 pool,k3,s2,p1,relu",
    "2x2x9x9 pool,k3,s1,p1",
    "2x2x8x8 pool,k2,s3",
    "1x3x20x18 pool,k17x16,s1",
    "1x2x16x16 pool,k16,s16,relu",
    "2x1x28x28 conv32,k5,p2 pool,k2,s2,relu",
    "2x1x28x28 conv32,k5,p2 pool,k2,s2,relu noinput",
    "2x9x13x11 conv13,k5,p2,relu pool,k3,s2,p1",
    "2x9x13x11 conv21,k1 pool,k3,s2,p1,relu +",
    "1x8x20x20 conv8,k1 pool,k17,s1",
    /* ReLU and flatten alone and in chains */
    "3x7 relu",
    "2x3x5x5 relu",
    "2x3x5x5 flatten",
    "2x8x5x7 conv12,k5,p2 relu flatten",
    "3x6x9x9 conv16,k5,p2,relu conv24,k1,relu conv10,k5 +",
    "2x3x9x9 conv3,k1,relu conv3,k5,p2,relu",
    "2x3x9x9 conv20,k1 conv2,k5,p2 conv12,k1",
    /* deconvolution: the models' kernel 4, stride 2, padding 1, and others; plain and behind convolutions */
    "1x1x1x1 deconv1,k1",
    "2x3x4x5 deconv2,k4,s2,p1",
    "2x2x3x3 deconv3,k3,s2,relu +",
    "1x2x4x3 deconv2,k2,s2,nobias",
    "2x3x5x4 deconv5,k3,p1,relu",
    "1x2x3x4 deconv3,k2x3,s3x1,p0x1",
    "2x1x4x4 deconv2,k5,s3,p2",
    "2x4x3x3 deconv20,k4,s2,p1,nobias,relu noinput",
    "2x32x8x6 deconv16,k4,s2,p1,relu",
    "2x24x5x7 deconv19,k4,s2,p1 +",
    "2x5x6x6 conv13,k3,p1 deconv11,k4,s2,p1,relu conv3,k3,p1",
    "2x3x7x7 conv32,k3,p1,relu deconv32,k4,s2,p1 conv16,k1 +",
    "1x8x4x4 conv16,k1 deconv8,k4,s2,p1,relu deconv8,k4,s2,p1,relu conv1,k1",
    "2x9x5x5 conv16,k1 deconv24,k3,s2,p1 deconv1,k2,s1,p0",
    /* bilinear upsampling: borders, single rows, all layouts */
    "1x1x1x1 upsample",
    "2x3x3x4 upsample",
    "1x2x1x5 upsample",
    "1x2x6x1 upsample upsample",
    "2x4x5x5 conv12,k3,p1 upsample conv5,k3,p1",
    "2x17x4x6 conv32,k1,relu upsample conv16,k1,relu +",
    "1x3x9x8 conv40,k1 upsample",
    /* adaptive pooling: identity, global, dividing, overlapping, larger than the input */
    "2x3x4x4 avgpool4",
    "2x3x5x4 avgpool1",
    "1x2x6x8 avgpool3x4",
    "2x2x5x7 avgpool3x4",
    "1x2x3x2 avgpool7",
    "2x2x1x1 avgpool3",
    "2x8x7x7 conv20,k3,p1 avgpool1 conv4,k1",
    "2x8x7x6 conv20,k3,p1,relu avgpool7x6 flatten linear5",
    "2x8x9x10 conv16,k1,relu avgpool4x7 conv9,k1 +",
    "3x9x8x8 conv24,k1 avgpool4x2 conv9,k1",
    /* concatenation: blocks that meet and blocks that do not, an input on both sides, equal inputs */
    "2x3x4x4 concat0",
    "2x2x3x5 conv3,k1 concat0",
    "1x3x3x3 concat0 concat0 concat1",
    "2x3x5x6 conv16,k3,p1,relu conv32,k3,p1 concat1 conv8,k3,p1,relu",
    "2x3x5x6 conv12,k3,p1 conv20,k3,p1,relu concat1 conv7,k3,p1 +",
    "2x3x5x6 conv24,k3,p1 conv13,k1 concat1 conv16,k1 concat0 conv5,k3,p1",
    "2x3x6x6 conv16,k3,p1 conv5,k1 concat0 conv17,k1 concat2",
    "1x1x8x8 conv8,k3,p1,relu pool,k2,s2 conv16,k3,p1 upsample concat1 conv1,k1",
    "1x3x8x8 conv16,k3,p1,relu pool,k2,s2 conv32,k1,relu deconv16,k4,s2,p1,relu concat1 conv16,k3,p1 noinput",
    /* batch normalisation and addition: one, several or very many values a channel, blocks that are full and
     * that are not, inputs in different orders, values that several operations read */
    "5x2x1x1 bn",
    "2x3x4x5 bn",
    "2x3x4x5 bn,relu +",
    "3x1x2x3 bn noinput",
    "2x5x3x3 bn,add0,relu",
    "4x9x1x1 bn,relu",
    "5x2x30x31 bn,relu",
    "3x4x70x61 bn,add0,relu +",
    "2x1x260x260 bn,relu",
    "2x8x7x7 conv16,k3,p1,nobias bn,relu",
    "2x9x5x6 conv13,k3,p1,nobias bn + noinput",
    "2x16x6x6 conv16,k3,p1,nobias bn,add0,relu",
    "2x16x6x6 conv16,k3,p1,nobias bn,add0 noinput",
    "2x3x9x9 conv12,k3,p1,nobias bn,relu conv12,k3,p1,nobias bn,add2,relu conv5,k1",
    "2x3x9x9 conv24,k3,p1,nobias bn,relu pool,k3,s2,p1 conv24,k3,p1,nobias bn,add3,relu conv24,k1 +",
    "2x8x8x8 conv16,k3,s2,p1,nobias bn,relu conv16,k3,p1,nobias bn,relu conv16,k1,nobias bn,add2,relu "
    "conv3,k1",
    "3x7 add0",
    "3x7 relu add0,relu",
    "2x3x4x4 add0",
    "2x16x5x4 conv16,k1 add0,relu conv16,k1 add1",
    "2x5x5x4 conv5,k1 conv5,k3,p1 add1 add0,relu add3 conv2,k1 +",
    "2x32x20x19 conv20,k1,nobias bn,relu conv20,k1 add2,relu bn",
    /* dropout: any rank, any layer, channels that end within a block of random numbers or of memory */
    "3x7 dropout50",
    "2x5 dropout30,l3 linear3",
    "5x13 linear37,relu dropout50,l1 linear10",
    "2x3x3x3 dropout25,l2",
    "3x2x2x2 dropout100",
    "2x5x3x3 dropout2d50",
    "2x6x3x3 conv21,k3,p1,relu dropout50 conv4,k1",
    "3x6x3x3 conv21,k3,p1,relu dropout2d30,l1 conv4,k1 +",
    "2x8x9x5 conv32,k1 dropout10,l5 conv16,k1 dropout2d20 conv4,k1",
    "2x3x5x5 conv16,k1 conv16,k3,p1 dropout2d50 dropout0,l1 concat1 conv3,k1",
    "3x1x28x28 conv32,k5,p2,relu pool,k2,s2 conv64,k5,p2,relu pool,k2,s2 flatten linear64,relu linear10 "
    "noinput",
    "4x1x28x28 conv32,k5,p2 pool,k2,s2,relu conv64,k5,p2 pool,k2,s2,relu flatten linear512,relu linear10 + "
    "noinput",
    /* 3x3 kernels on few tiles, full and a quarter full */
    "1x24x4x4 conv40,k3,p1,relu",
    "3x20x2x2 conv19,k3,p1 +",
    /* few pixels, many weights; behind all others, as a case's place seeds its data, and in a long chain
     * another seed may bring a pool's two largest values closer than rounding */
    "2x32x4x4 deconv16,k4,s2,p1,relu",
    "1x16x3x4 conv64,k1 deconv16,k4,s2,p1 +",
    "2x32x4x3 deconv32,k4,s2,p1,nobias noinput",
    "2x32x8x7 conv32,k3,s2,p1,relu",
    "1x16x6x5 conv48,k1 conv32,k3,s2,p1,nobias +",
    "2x64x5x5 conv16,k5,s2,p0 noinput",
    /* long rows in the plain order */
    "2x3x5x37 avgpool1x2",
    "1x1x3x21 avgpool2x1",
    NULL,
};

const char *const speed_cases[] = {
    "64x1x28x28 conv32,k5,p2 noinput",
    "64x1x28x28 conv32,k5,p2,relu noinput",
    "64x32x28x28 conv32,k1 pool,k2,s2,relu",
    "64x32x14x14 conv64,k5,p2",
    "64x32x14x14 conv64,k5,p2,relu",
    "64x64x14x14 conv64,k1 pool,k2,s2,relu flatten",
    "64x3136 linear512,relu",
    "64x512 linear10",
    "128x1x28x28 conv32,k5,p2 noinput",
    "128x32x14x14 conv64,k5,p2",
    "128x3136 linear512,relu",
    "128x512 linear10",
    "64x784 linear512,relu noinput",
    "64x512 linear512,relu",
    "256x784 linear512,relu noinput",
    "256x512 linear512,relu",
    "64x3x32x32 conv32,k3,p1,relu noinput",
    "16x64x32x32 conv64,k3,p1,relu",
    "16x128x16x16 conv128,k3,p1,relu",
    "4x3x224x224 conv64,k7,s2,p3,relu noinput",
    "4x512x4x4 conv512,k1 deconv256,k4,s2,p1,relu",
    "4x64x32x32 conv128,k1 deconv64,k4,s2,p1,relu",
    "4x64x32x32 conv64,k1 upsample upsample",
    "4x64x64x64 conv32,k1 conv64,k1 concat1 dropout50 dropout2d50",
    "4x64x32x32 conv64,k1 avgpool32 avgpool1",
    "64x64x32x32 conv64,k3,p1,nobias",
    "64x128x16x16 conv128,k3,p1,nobias",
    "64x256x8x8 conv256,k3,p1,nobias",
    "64x512x4x4 conv512,k3,p1,nobias",
    "4x64x128x128 conv64,k3,p1,relu",
    "4x128x64x64 conv128,k3,p1,relu",
    "4x512x16x16 conv512,k3,p1,relu",
    "4x512x8x8 conv512,k3,p1,relu",
    "2x512x4x4 conv512,k3,p1,nobias",
    "4x768x4x4 conv512,k3,p1,relu",
    "64x64x32x32 conv64,k1 bn,relu conv64,k1 bn,add2,relu add2,relu",
    "64x128x16x16 conv128,k1 bn,relu conv128,k1 bn,add2,relu",
    "64x256x8x8 conv256,k1 bn,relu conv256,k1 bn,add2,relu",
    "64x512x4x4 conv512,k1 bn,relu conv512,k1 bn,add2,relu",
    NULL,
};

/* A number, or two joined by x, behind a letter. */
static bool read_pair(const char *text, int pair[2])
{
    int got = sscanf(text, "%dx%d", &pair[0], &pair[1]);
    if (got == 1)
        pair[1] = pair[0];
    return got >= 1;
}

static bool read_option(const char *word, dp_op_desc *d)
{
    if (strcmp(word, "relu") == 0)
        d->relu = true;
    else if (strcmp(word, "nobias") == 0)
        d->params = 1;
    else if (*word == 'k')
        return read_pair(word + 1, d->kernel);
    else if (*word == 's')
        return read_pair(word + 1, d->stride);
    else if (*word == 'p')
        return read_pair(word + 1, d->padding);
    else if (*word == 'l')
        return sscanf(word + 1, "%d", &d->layer) == 1;
    else
        return false;
    return true;
}

/* number: the one, or the two, behind the operation's name. */
static void finish_shape(dp_op_desc *d, const int number[2])
{
    d->out = d->in[0];
    int64_t *out = d->out.dim;
    const int64_t *in = d->in[0].dim;
    switch (d->kind) {
    case DP_OP_LINEAR:
    case DP_OP_FLATTEN:
        d->out.rank = 2;
        out[1] = d->kind == DP_OP_LINEAR ? number[0] : dp_shape_sample_elements(&d->in[0]);
        break;
    case DP_OP_CONV2D:
    case DP_OP_CONV_TRANSPOSE2D:
        out[1] = number[0];
        break;
    case DP_OP_CONCAT:
        out[1] += d->in[1].dim[1];
        break;
    case DP_OP_DROPOUT:
    case DP_OP_DROPOUT2D:
        d->probability = number[0] / 100.0;
        break;
    default:
        break;
    }
    for (int i = 0; i < 2; i++) {
        if (d->kind == DP_OP_CONV2D || d->kind == DP_OP_MAX_POOL2D)
            out[2 + i] = (in[2 + i] + 2 * d->padding[i] - d->kernel[i]) / d->stride[i] + 1;
        else if (d->kind == DP_OP_CONV_TRANSPOSE2D)
            out[2 + i] = (in[2 + i] - 1) * d->stride[i] - 2 * d->padding[i] + d->kernel[i];
        else if (d->kind == DP_OP_UPSAMPLE2X)
            out[2 + i] = 2 * in[2 + i];
        else if (d->kind == DP_OP_ADAPTIVE_AVG_POOL2D)
            out[2 + i] = number[i];
    }
}

static const dp_shape *shape_of_value(const op_case *c, int value)
{
    return value ? &c->chain[value - 1].out : &c->chain[0].in[0];
}

/* Whether the second input, value `number`, is there and fits. */
static bool read_second(op_case *c, dp_op_desc *d, int number)
{
    if (number < 0 || number > c->length)
        return false;
    d->inputs = 2;
    d->in[1] = c->length ? *shape_of_value(c, number) : d->in[0];
    c->reads[c->length][1] = number;
    for (int i = 0; i < d->in[0].rank; i++)
        if (d->in[1].dim[i] != d->in[0].dim[i] && !(i == 1 && d->kind == DP_OP_CONCAT))
            return false;
    return d->in[1].rank == d->in[0].rank;
}

static bool read_op(char *word, const dp_shape *in, op_case *c)
{
    static const struct {
        const char *name;
        dp_op_kind kind;
        int params;
    } kinds[] = {{"linear", DP_OP_LINEAR, 2},
                 {"conv", DP_OP_CONV2D, 2},
                 {"pool", DP_OP_MAX_POOL2D, 0},
                 {"relu", DP_OP_RELU, 0},
                 {"flatten", DP_OP_FLATTEN, 0},
                 {"add", DP_OP_ADD, 0},
                 {"bn", DP_OP_BATCH_NORM2D, 2},
                 {"concat", DP_OP_CONCAT, 0},
                 {"deconv", DP_OP_CONV_TRANSPOSE2D, 2},
                 {"upsample", DP_OP_UPSAMPLE2X, 0},
                 {"avgpool", DP_OP_ADAPTIVE_AVG_POOL2D, 0},
                 {"dropout2d", DP_OP_DROPOUT2D, 0},
                 {"dropout", DP_OP_DROPOUT, 0}};
    dp_op_desc *d = &c->chain[c->length];
    *d = (dp_op_desc){.inputs = 1, .in[0] = *in, .stride = {1, 1}};
    c->reads[c->length][0] = c->length;
    char *rest = NULL, *name = strtok_r(word, ",", &rest);
    size_t k = 0, count = sizeof kinds / sizeof *kinds;
    while (k < count && strncmp(name, kinds[k].name, strlen(kinds[k].name)) != 0)
        k++;
    if (k == count)
        return false;
    d->kind = kinds[k].kind;
    d->params = kinds[k].params;
    for (char *option; (option = strtok_r(NULL, ",", &rest));) {
        bool more = d->kind == DP_OP_BATCH_NORM2D && strncmp(option, "add", 3) == 0;
        if (more ? !read_second(c, d, atoi(option + 3)) : !read_option(option, d))
            return false;
    }
    if (d->kind == DP_OP_LINEAR && in->rank != 2)
        return false;
    int number[2] = {0};
    read_pair(name + strlen(kinds[k].name), number);
    if ((d->kind == DP_OP_ADD || d->kind == DP_OP_CONCAT) && !read_second(c, d, number[0]))
        return false;
    finish_shape(d, number);
    c->length++;
    return dp_shape_elements(&d->out) > 0;
}

bool op_case_parse(const char *text, op_case *out)
{
    char copy[256];
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy)
        return false;
    *out = (op_case){.text = text, .input_gradient = true};
    char *rest = NULL, *word = strtok_r(copy, " ", &rest);
    int64_t dim[4];
    int rank = sscanf(word, "%ldx%ldx%ldx%ld", &dim[0], &dim[1], &dim[2], &dim[3]);
    dp_shape shape = {.rank = rank, .dim = {0}};
    memcpy(shape.dim, dim, (size_t)rank * sizeof *dim);
    while ((word = strtok_r(NULL, " ", &rest))) {
        if (strcmp(word, "+") == 0)
            out->accumulate = true;
        else if (strcmp(word, "noinput") == 0)
            out->input_gradient = false;
        else if (out->length == MAX_CHAIN - 1 || !read_op(word, &shape, out))
            return false;
        else
            shape = out->chain[out->length - 1].out;
    }
    char flatten[] = "flatten";
    if (shape.rank == 4 && !read_op(flatten, &shape, out))
        return false;
    return out->length > 0;
}

double op_case_flops(const dp_op_desc *d)
{
    double outputs = (double)dp_shape_elements(&d->out);
    if (d->kind == DP_OP_LINEAR)
        return 2 * outputs * (double)d->in[0].dim[1];
    if (d->kind == DP_OP_CONV2D)
        return 2 * outputs * (double)(d->in[0].dim[1] * d->kernel[0] * d->kernel[1]);
    if (d->kind == DP_OP_CONV_TRANSPOSE2D)
        return 2 * (double)(dp_shape_elements(&d->in[0]) * d->out.dim[1] * d->kernel[0] * d->kernel[1]);
    return 0;
}

const loss_case loss_cases[] = {
    {DP_CROSS_ENTROPY, 1, 1, 1, 1, false},
    {DP_CROSS_ENTROPY, 5, 10, 1, 0.2f, false},
    {DP_CROSS_ENTROPY, 64, 10, 1, 1.0f / 64, true},
    {DP_CROSS_ENTROPY, 300, 37, 1, 1.0f / 300, true},
    {DP_CROSS_ENTROPY, 3, 10007, 1, 1, false},
    {DP_BCE_WITH_LOGITS, 1, 1, 1, 1, false},
    {DP_BCE_WITH_LOGITS, 7, 129, 1, 0.01f, false},
    {DP_BCE_WITH_LOGITS, 7, 129, 3.5f, 0.01f, true},
    {DP_BCE_WITH_LOGITS, 2, 16384, 0.25f, 1.0f / 32768, true},
    {DP_MSE, 1, 1, 1, 1, false},
    {DP_MSE, 9, 33, 1, 0.5f, true},
    {DP_MSE, 2, 20000, 1, 1.0f / 40000, false},
    {DP_L1, 1, 1, 1, 1, false},
    {DP_L1, 9, 33, 1, 0.5f, true},
};
const size_t loss_case_count = sizeof loss_cases / sizeof *loss_cases;

const update_case update_cases[] = {
    {"sgd", DP_SGD, 0.1f, 0, 0, false},
    {"sgd, decay", DP_SGD, 0.1f, 0, 0.01f, false},
    {"sgd, momentum", DP_SGD, 0.05f, 0.9f, 0, false},
    {"sgd, momentum, decay", DP_SGD, 0.05f, 0.9f, 0.001f, false},
    {"sgd, nesterov, decay", DP_SGD, 0.05f, 0.9f, 0.001f, true},
    {"adamw", DP_ADAMW, 0.01f, 0, 0, false},
    {"adamw, decay", DP_ADAMW, 0.01f, 0, 0.1f, false},
};
const size_t update_case_count = sizeof update_cases / sizeof *update_cases;
