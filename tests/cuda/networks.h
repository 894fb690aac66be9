/* The convolutions of the model zoo: shapes alone. */
#ifndef DP_TESTS_CUDA_NETWORKS_H
#define DP_TESTS_CUDA_NETWORKS_H

#include <stdbool.h>
#include <stdint.h>

/* A convolution of square maps. A deconvolution stands for the convolution whose transpose it is: its output
 * is the input here. */
typedef struct layer {
    const char *network; /* the first that has it */
    int64_t batch, in, size, out, kernel, stride, padding;
} layer;

enum { MOST_LAYERS = 2048 };

typedef struct layer_list {
    layer layers[MOST_LAYERS]; /* all different */
    int count;
} layer_list;

/* Adds the layers that the list does not have. */
void add_layer(layer_list *list, layer l);

/* Adds every convolution of every network; more: with several batch and image sizes. False if a network has
 * not as many convolutions as its authors say (a mistake here), which is printed. */
bool add_networks(layer_list *list, bool more);

#endif
