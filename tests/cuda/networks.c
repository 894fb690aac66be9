#include "networks.h"

#include <stdio.h>
#include <string.h>

void add_layer(layer_list *list, layer l)
{
    for (int i = 0; i < list->count; i++) {
        layer have = list->layers[i];
        have.network = l.network;
        if (memcmp(&have, &l, sizeof l) == 0)
            return;
    }
    if (list->count < MOST_LAYERS)
        list->layers[list->count++] = l;
}

/* ---- a walk through a network: what comes out of the last layer, and what it went through ---- */

typedef struct walk {
    layer_list *list;
    const char *network;
    int64_t batch, channels, size;
    int convolutions;
} walk;

static void conv(walk *w, int64_t out, int64_t kernel, int64_t stride)
{
    int64_t padding = kernel / 2;
    add_layer(w->list, (layer){w->network, w->batch, w->channels, w->size, out, kernel, stride, padding});
    w->channels = out;
    w->size = (w->size + 2 * padding - kernel) / stride + 1;
    w->convolutions++;
}

static void deconv(walk *w, int64_t out)
{
    add_layer(w->list, (layer){w->network, w->batch, out, 2 * w->size, w->channels, 4, 2, 1});
    w->channels = out;
    w->size *= 2;
    w->convolutions++;
}

/* ---- encoders ---- */

static void residual_block(walk *w, int64_t width, int64_t stride, int expansion)
{
    walk shortcut = *w;
    if (expansion > 1)
        conv(w, width, 1, 1);
    conv(w, width, 3, stride);
    if (expansion == 1)
        conv(w, width, 3, 1);
    else
        conv(w, width * expansion, 1, 1);
    if (stride != 1 || shortcut.channels != w->channels) {
        conv(&shortcut, w->channels, 1, stride);
        w->convolutions++;
    }
}

/* stages: channels behind each of the four, for a decoder; may be NULL. */
static void resnet(walk *w, int depth, bool cifar, int64_t stages[4])
{
    static const int basic[4] = {2, 2, 2, 2}, deeper[4] = {3, 4, 6, 3}, deepest[4] = {3, 4, 23, 3};
    const int *blocks = depth == 18 ? basic : depth == 101 ? deepest : deeper;
    conv(w, 64, cifar ? 3 : 7, cifar ? 1 : 2);
    if (!cifar)
        w->size = (w->size + 1) / 2;
    for (int stage = 0; stage < 4; stage++) {
        for (int k = 0; k < blocks[stage]; k++)
            residual_block(w, 64 << stage, k == 0 && stage > 0 ? 2 : 1, depth < 50 ? 1 : 4);
        if (stages)
            stages[stage] = w->channels;
    }
}

static void vgg16(walk *w)
{
    static const int widths[5] = {64, 128, 256, 512, 512}, convolutions[5] = {2, 2, 3, 3, 3};
    for (int stage = 0; stage < 5; stage++) {
        for (int k = 0; k < convolutions[stage]; k++)
            conv(w, widths[stage], 3, 1);
        w->size /= 2;
    }
}

/* ---- U-Nets ---- */

static const int64_t filters = 32;

static void decode(walk *w, int64_t skipped, int64_t middle, int64_t out, bool deconvolution)
{
    w->channels += skipped;
    if (deconvolution) {
        conv(w, middle, 3, 1);
        deconv(w, out);
    } else {
        w->size *= 2;
        conv(w, middle, 3, 1);
        conv(w, out, 3, 1);
    }
}

static void unet16(walk *w, bool deconvolution)
{
    const int64_t f = filters;
    vgg16(w);
    decode(w, 0, f * 16, f * 8, deconvolution);
    decode(w, 512, f * 16, f * 8, deconvolution);
    decode(w, 512, f * 16, f * 8, deconvolution);
    decode(w, 256, f * 8, f * 2, deconvolution);
    decode(w, 128, f * 4, f, deconvolution);
    w->channels += 64;
    conv(w, f, 3, 1);
    conv(w, 1, 1, 1);
}

static void unet_resnet(walk *w, int depth, bool deconvolution)
{
    const int64_t f = filters;
    int64_t stages[4];
    resnet(w, depth, false, stages);
    w->size /= 2;
    decode(w, 0, f * 16, f * 8, deconvolution);
    decode(w, stages[3], f * 16, f * 8, deconvolution);
    decode(w, stages[2], f * 16, f * 8, deconvolution);
    decode(w, stages[1], f * 8, f * 2, deconvolution);
    decode(w, stages[0], f * 4, f * 4, deconvolution);
    decode(w, 0, f * 4, f, deconvolution);
    conv(w, f, 3, 1);
    conv(w, 1, 1, 1);
}

/* ---- all of them ---- */

typedef struct network {
    const char *name;
    enum { RESNET, RESNET_CIFAR, VGG16, UNET16, UNET_RESNET } family;
    int depth;
    bool deconvolution;
    int64_t batch, size;
    int convolutions; /* He et al. 2015, with the shortcuts; Simonyan, Zisserman 2014; two in each decoder */
} network;

static const network networks[] = {
    {"resnet18", RESNET, 18, false, 64, 224, 20},
    {"resnet34", RESNET, 34, false, 64, 224, 36},
    {"resnet50", RESNET, 50, false, 32, 224, 53},
    {"resnet101", RESNET, 101, false, 32, 224, 104},
    {"resnet18_cifar", RESNET_CIFAR, 18, false, 64, 32, 20},
    {"resnet34_cifar", RESNET_CIFAR, 34, false, 64, 32, 36},
    {"resnet50_cifar", RESNET_CIFAR, 50, false, 64, 32, 53},
    {"resnet101_cifar", RESNET_CIFAR, 101, false, 64, 32, 104},
    {"vgg16", VGG16, 0, false, 16, 224, 13},
    {"unet16", UNET16, 0, false, 4, 128, 25},
    {"unet16 --deconv", UNET16, 0, true, 4, 128, 25},
    {"unet_resnet34", UNET_RESNET, 34, false, 4, 128, 50},
    {"unet_resnet34 --deconv", UNET_RESNET, 34, true, 4, 128, 50},
    {"unet_resnet101", UNET_RESNET, 101, false, 4, 128, 118},
    {"unet_resnet101 --deconv", UNET_RESNET, 101, true, 4, 128, 118},
};

static bool add_network(layer_list *list, const network *n, int64_t batch, int64_t size)
{
    walk w = {.list = list, .network = n->name, .batch = batch, .channels = 3, .size = size};
    switch (n->family) {
    case RESNET:
    case RESNET_CIFAR:
        resnet(&w, n->depth, n->family == RESNET_CIFAR, NULL);
        break;
    case VGG16:
        vgg16(&w);
        break;
    case UNET16:
        unet16(&w, n->deconvolution);
        break;
    case UNET_RESNET:
        unet_resnet(&w, n->depth, n->deconvolution);
        break;
    }
    bool segments = n->family == UNET16 || n->family == UNET_RESNET;
    if (w.convolutions == n->convolutions && list->count < MOST_LAYERS && (!segments || w.size == size))
        return true;
    printf("FAILED: %s has %d convolutions here and %d in truth, size %lld\n", n->name, w.convolutions,
           n->convolutions, (long long)w.size);
    return false;
}

bool add_networks(layer_list *list, bool more)
{
    bool good = true;
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) {
        const network *n = &networks[i];
        good = add_network(list, n, n->batch, n->size) && good;
        if (more) /* the last chunks of an epoch, and twice the size */
            good = add_network(list, n, 1, n->size) && add_network(list, n, 43, n->size) &&
                   add_network(list, n, 3, 2 * n->size) && good;
    }
    return good;
}
