/* What winograd.c plans and the kernels of winograd_lanes.h carry out. They are compiled for 8 and for 16
 * lanes and for tiles of 4x4 and of 6x6 inputs. */
#ifndef DP_CPU_WINOGRAD_PASS_H
#define DP_CPU_WINOGRAD_PASS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    DP_WINOGRAD_WEIGHT_ROWS = 8, /* of the weights, transformed together */
};

/* An image [batch, blocks, height, width, lanes] seen through tiles. */
typedef struct dp_winograd_image {
    const float *data;
    int64_t blocks, height, width;
} dp_winograd_image;

/* One convolution, whichever way it goes: of `from`, padded, into `to`. */
typedef struct dp_winograd_pass {
    dp_winograd_image from, to;
    int lanes; /* channels of a block */
    int side;  /* of a tile of inputs or products */
    int kernel;
    int tile;          /* side of a tile of outputs */
    bool scaled_tiles; /* inputs take the scales of G, else the weights do */
    int padding[2];
    int64_t tiles_down, tiles_across, tiles; /* of `to`; tiles: in all of the batch */
    int64_t rows, pairs;                     /* of the weights: channels of from, pairs of blocks of to */
    int64_t batch, first, count;             /* tiles at once; where they begin and how many there are now */
    int64_t first_pair, pair_count;          /* pairs of blocks of columns at once: all, or one of a share */
    int64_t group, first_row, row_count;     /* the same for rows */
    int64_t shares;                          /* of the columns, each of one thread; 0: threads share phases */
    const float *weights;                    /* plain */
    float *weights_gradient;
    int64_t in_channels, out_channels;
    bool backward; /* weights are turned and in and out change places */
    bool relu, accumulate;
    const float *bias;
    float *out;
    float *v; /* transformed tiles of from */
    float *u; /* transformed weights of these pairs and a group, for each share */
    float *m; /* products, these pairs of blocks of to, for each share */
} dp_winograd_pass;

/* Floats from a position to the next, in one pair of blocks of columns for the weights. A line more than is
 * needed: positions at distances of powers of two would collide in the cache. */
static inline int64_t dp_winograd_from_step(const dp_winograd_pass *p)
{
    return (p->from.blocks * p->batch + 2) * p->lanes;
}

static inline int64_t dp_winograd_to_step(const dp_winograd_pass *p)
{
    return (2 * p->pair_count * p->batch + 2) * p->lanes;
}

static inline int64_t dp_winograd_weights_step(const dp_winograd_pass *p)
{
    return (p->group + 1) * 2 * p->lanes;
}

/* Phases of a pass, on a dp_winograd_pass, in the form that dp_cpu_for wants. Of the current batch of tiles,
 * pairs of columns and group of rows. */
typedef struct dp_winograd_kernels {
    void (*weights)(const void *pass, int64_t begin, int64_t end);      /* pair of columns, 8 rows */
    void (*gather)(const void *pass, int64_t begin, int64_t end);       /* the same, back */
    void (*tiles_in)(const void *pass, int64_t begin, int64_t end);     /* block of from, tile */
    void (*gradients_in)(const void *pass, int64_t begin, int64_t end); /* block of to in these pairs, tile */
    void (*tiles_out)(const void *pass, int64_t begin, int64_t end);    /* the same, back */
    void (*products)(const void *pass, int64_t begin, int64_t end);     /* position, pair of columns */
    void (*gradient_products)(const void *pass, int64_t begin, int64_t end); /* the same */
} dp_winograd_kernels;

extern const dp_winograd_kernels dp_winograd_8_side4, dp_winograd_8_side6, dp_winograd_16_side4,
    dp_winograd_16_side6;

#endif
