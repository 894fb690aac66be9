/* Winograd's F(4x4, 3x3) and F(2x2, 5x5): Lavin and Gray, "Fast Algorithms for Convolutional Neural
 * Networks", 2015.
 *
 * A tile of outputs comes from 6x6 inputs d and a kernel g by Y = A'[(G g G') * (B' d B)]A, where *
 * multiplies the 36 positions one by one. For all tiles and channels together that makes 36 matrix products
 * [tiles, in] x [in, out]: a quarter of the multiplications of the direct sum with 3x3 kernels, whose tiles
 * are 4x4; with 5x5 kernels, whose tiles are 2x2, 9 of 25. The gradient of the weights is
 * G'[sum over tiles of (B' d B) * (A dY A')]G: 36 products [in, tiles] x [tiles, out].
 *
 * The matrices follow from polynomials at the points 0, P, -P, Q, -Q and infinity: a sum of products of
 * n + r - 1 = 6 values comes from two polynomials of n and r coefficients. A evaluates one with as many
 * coefficients as a tile has rows, G one with as many as the kernel has, and B depends on the points alone.
 * P = 5/8, Q = 3/2 keep float32's rounding smaller than the usual 1 and 2 do.
 *
 * The channels of a block are the lanes of a vector, so transforms are plain arithmetic on vectors
 * (winograd_lanes.h). Tiles are taken in batches whose transforms fit the caches; within a batch come three
 * phases, each shared by the device's threads: transform, products, transform back. Where one batch is
 * enough, the columns of the weights are taken in panels instead, and their rows in groups as long as a sum,
 * for the same reason: the transformed weights are 4 times the plain ones and never leave the caches.
 * Transformed tensors lie as [36][blocks][tiles][lanes], transformed weights as [36][pairs of blocks of
 * columns][rows][2 lanes].
 */
#include "cpu/winograd.h"

#include "cpu/internal.h"
#include "cpu/winograd_pass.h"

enum {
    POSITIONS = DP_WINOGRAD_POSITIONS,
    BATCH_FLOATS = 128 * 1024, /* of one transformed tensor in a batch of tiles, about */
    PANEL_FLOATS = 128 * 1024, /* of the transformed weights of a panel and group, about */
    FEW_TILES = 4,             /* or more columns to each */
    LEAST_TILES = 48,          /* in a batch: the transformed weights pass once for each */
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t align(int64_t floats)
{
    return (floats + 15) / 16 * 16;
}

static int tile_of(const dp_winograd *s)
{
    return DP_WINOGRAD_SIDE + 1 - s->kernel;
}

/* How many tiles and pairs of blocks of columns are handled together. */
static void plan_parts(dp_winograd_pass *p, int threads)
{
    int64_t wide = p->from.blocks > 2 * p->pairs ? p->from.blocks : 2 * p->pairs;
    int64_t most = BATCH_FLOATS / (POSITIONS * wide * p->lanes);
    most = (most > LEAST_TILES ? most : LEAST_TILES) * threads;
    if (FEW_TILES * p->tiles <= p->pairs * 2 * p->lanes && most < p->tiles)
        most = p->tiles; /* there is less of them than of the weights: these come in panels instead */
    p->batch = ceil_div(p->tiles, ceil_div(p->tiles, most)); /* of about the same size, in whole rows */
    p->batch = ceil_div(p->batch, DP_WINOGRAD_ROWS) * DP_WINOGRAD_ROWS;
    p->panel = p->pairs;
    p->group = p->rows;
    if (p->batch >= p->tiles) {
        p->group = p->rows < DP_WINOGRAD_SUM_CHANNELS ? p->rows : DP_WINOGRAD_SUM_CHANNELS;
        int64_t pairs = PANEL_FLOATS / (POSITIONS * p->group * 2 * p->lanes) * threads;
        p->panel = pairs < threads ? threads : pairs;
        p->panel = p->panel < p->pairs ? p->panel : p->pairs;
    }
}

/* Everything but the pointers. backward: from the outputs' side to the inputs'. */
static dp_winograd_pass plan(const dp_winograd *s, bool backward, int threads)
{
    dp_winograd_pass p = {.lanes = s->block,
                          .kernel = s->kernel,
                          .tile = tile_of(s),
                          .in_channels = s->in_channels,
                          .out_channels = s->out_channels,
                          .backward = backward};
    dp_winograd_image in = {NULL, ceil_div(s->in_channels, s->block), s->in_height, s->in_width};
    dp_winograd_image out = {NULL, ceil_div(s->out_channels, s->block), s->out_height, s->out_width};
    p.from = backward ? out : in;
    p.to = backward ? in : out;
    for (int i = 0; i < 2; i++)
        p.padding[i] = backward ? s->kernel - 1 - s->padding[i] : s->padding[i];
    p.tiles_down = ceil_div(p.to.height, p.tile);
    p.tiles_across = ceil_div(p.to.width, p.tile);
    p.tiles = s->batch * p.tiles_down * p.tiles_across;
    p.rows = p.from.blocks * p.lanes;
    p.pairs = ceil_div(p.to.blocks, 2);
    plan_parts(&p, threads);
    return p;
}

static int64_t weights_floats(const dp_winograd_pass *p)
{
    return align(POSITIONS * dp_winograd_weights_step(p));
}

static int64_t from_floats(const dp_winograd_pass *p)
{
    return align(POSITIONS * dp_winograd_from_step(p));
}

static size_t pass_bytes(const dp_winograd_pass *p)
{
    int64_t to = align(POSITIONS * dp_winograd_to_step(p));
    return (size_t)(weights_floats(p) + from_floats(p) + to) * sizeof(float);
}

static void place_workspace(dp_winograd_pass *p, void *workspace)
{
    p->u = workspace;
    p->v = p->u + weights_floats(p);
    p->m = p->v + from_floats(p);
}

size_t dp_winograd_workspace(const dp_winograd *shape, int threads)
{
    dp_winograd_pass forward = plan(shape, false, threads), backward = plan(shape, true, threads);
    size_t a = pass_bytes(&forward), b = pass_bytes(&backward);
    return a > b ? a : b;
}

static const dp_winograd_kernels *kernels_of(const dp_winograd_pass *p)
{
    return p->lanes == 8 ? &dp_winograd_kernels_8 : &dp_winograd_kernels_16;
}

/* Goes to the next batch of tiles, or panel; false behind the last. */
static bool next_batch(dp_winograd_pass *p)
{
    p->first += p->count;
    p->count = p->tiles - p->first < p->batch ? p->tiles - p->first : p->batch;
    return p->count > 0;
}

static bool next_panel(dp_winograd_pass *p)
{
    p->first_pair += p->pair_count;
    p->pair_count = p->pairs - p->first_pair < p->panel ? p->pairs - p->first_pair : p->panel;
    return p->pair_count > 0;
}

static void first_panel(dp_winograd_pass *p)
{
    p->first_pair = p->pair_count = 0;
}

static bool next_group(dp_winograd_pass *p)
{
    p->first_row += p->row_count;
    p->row_count = p->rows - p->first_row < p->group ? p->rows - p->first_row : p->group;
    return p->row_count > 0;
}

static void first_group(dp_winograd_pass *p)
{
    p->first_row = p->row_count = 0;
}

/* How many groups of WEIGHT_ROWS rows, which are transformed together, the panel has now. */
static int64_t weights_items(const dp_winograd_pass *p)
{
    return p->pair_count * p->row_count / DP_WINOGRAD_WEIGHT_ROWS;
}

/* Blocks of `to` in the panel: the last pair may have one alone. */
static int64_t panel_blocks(const dp_winograd_pass *p)
{
    int64_t left = p->to.blocks - 2 * p->first_pair, most = 2 * p->pair_count;
    return left < most ? left : most;
}

/* With several batches there is one panel and group, and the transformed weights stay. */
static void convolve(int threads, dp_winograd_pass *p)
{
    const dp_winograd_kernels *k = kernels_of(p);
    while (next_batch(p)) {
        dp_cpu_for(threads, p->from.blocks * p->count, 32, k->tiles_in, p);
        for (first_panel(p); next_panel(p);) {
            for (first_group(p); next_group(p);) {
                if (p->first == 0)
                    dp_cpu_for(threads, weights_items(p), 8, k->weights, p);
                dp_cpu_for(threads, POSITIONS * p->pair_count, 1, k->products, p);
            }
            dp_cpu_for(threads, panel_blocks(p) * p->count, 32, k->tiles_out, p);
        }
    }
}

void dp_winograd_forward(int threads, const dp_winograd *shape, const float *in, const float *weights,
                         const float *bias, bool relu, float *out, void *workspace)
{
    dp_winograd_pass p = plan(shape, false, threads);
    place_workspace(&p, workspace);
    p.from.data = in;
    p.out = out;
    p.weights = weights;
    p.bias = bias;
    p.relu = relu;
    convolve(threads, &p);
}

void dp_winograd_backward_data(int threads, const dp_winograd *shape, const float *out_gradient,
                               const float *weights, float *in_gradient, void *workspace)
{
    dp_winograd_pass p = plan(shape, true, threads);
    place_workspace(&p, workspace);
    p.from.data = out_gradient;
    p.out = in_gradient;
    p.weights = weights;
    convolve(threads, &p);
}

void dp_winograd_backward_weights(int threads, const dp_winograd *shape, const float *in,
                                  const float *out_gradient, float *weights_gradient, bool accumulate,
                                  void *workspace)
{
    dp_winograd_pass p = plan(shape, false, threads);
    const dp_winograd_kernels *k = kernels_of(&p);
    place_workspace(&p, workspace);
    p.from.data = in;
    p.to.data = out_gradient;
    p.weights_gradient = weights_gradient;
    p.accumulate = accumulate;
    while (next_batch(&p)) {
        dp_cpu_for(threads, p.from.blocks * p.count, 32, k->tiles_in, &p);
        for (first_panel(&p); next_panel(&p);) {
            dp_cpu_for(threads, panel_blocks(&p) * p.count, 32, k->gradients_in, &p);
            for (first_group(&p); next_group(&p);) {
                dp_cpu_for(threads, POSITIONS * p.pair_count, 1, k->gradient_products, &p);
                if (p.first + p.count == p.tiles)
                    dp_cpu_for(threads, weights_items(&p), 8, k->gather, &p);
            }
        }
    }
}

bool dp_winograd_fits(const dp_winograd *s, const int kernel[2], const int stride[2])
{
    enum { LEAST_CHANNELS = 16 };
    for (int i = 0; i < 2; i++)
        if (kernel[i] != s->kernel || stride[i] != 1 || s->padding[i] > s->kernel - 1)
            return false;
    if (s->kernel != 3 && s->kernel != 5)
        return false;
    /* A tile of 6x6 products for a quarter of its outputs multiplies as often as the direct sum: nine times
     * for each of 2x2 outputs of 4x4. */
    int64_t side = tile_of(s), outputs = s->out_height * s->out_width;
    int64_t tiles = ceil_div(s->out_height, side) * ceil_div(s->out_width, side);
    return s->in_channels >= LEAST_CHANNELS && s->out_channels >= LEAST_CHANNELS &&
           4 * outputs >= tiles * side * side;
}
