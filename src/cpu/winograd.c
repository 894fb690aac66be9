/* Winograd's F(4x4, 3x3), F(2x2, 3x3) and F(2x2, 5x5): Lavin and Gray, "Fast Algorithms for Convolutional
 * Neural Networks", 2015.
 *
 * A tile of outputs comes from a tile of inputs d and a kernel g by Y = A'[(G g G') * (B' d B)]A, where *
 * multiplies position by position. For all tiles and channels together that makes a matrix product
 * [tiles, in] x [in, out] for each of the 36 positions of a tile of 6x6 inputs: a quarter of the
 * multiplications of the direct sum with 3x3 kernels, whose tiles of outputs are 4x4; with 5x5 kernels, whose
 * tiles are 2x2, 9 of 25. The gradient of the weights is G'[sum over tiles of (B' d B) * (A dY A')]G: 36
 * products [in, tiles] x [tiles, out].
 *
 * On few small images turning the weights into 36 matrices is more work than multiplying by them. 3x3 kernels
 * then use tiles of 4x4 inputs: 16 positions for 2x2 outputs, 4 of 9 of the multiplications. So how a sample
 * is rounded depends on how many there are.
 *
 * The matrices follow from polynomials at points, of which one is infinity: a sum of products of n + r - 1
 * values, one for each point, comes from two polynomials of n and r coefficients. A evaluates one with as
 * many coefficients as a tile of outputs has rows, G one with as many as the kernel has, and B depends on the
 * points alone. The points 0, P, -P, Q, -Q with P = 5/8, Q = 3/2 keep float32's rounding smaller than the
 * usual 1 and 2 do; four points are 0, 1, -1 and infinity. The scales of G's rows go to the kernels, or to
 * the tiles of inputs where these are fewer than the columns.
 *
 * The channels of a block are the lanes of a vector, so transforms are plain arithmetic on vectors
 * (winograd_lanes.h). Tiles are taken in batches whose transforms fit the caches; within a batch come three
 * phases, each shared by the device's threads: transform, products, transform back. Where one batch is enough
 * the weights' rows are taken in groups as long as a sum, so that their transforms, up to 4 times the plain
 * weights, stay in the caches; and where the columns can be shared evenly each thread has a share of them,
 * which it takes pair by pair of blocks, from the weights to the outputs, without waiting for another.
 * Transformed tensors lie as [positions][blocks][tiles][lanes], transformed weights as [pairs of blocks of
 * columns][positions][rows][2 lanes].
 */
#include "cpu/winograd.h"

#include "cpu/internal.h"
#include "cpu/products.h"
#include "cpu/winograd_pass.h"

enum {
    BATCH_FLOATS = 128 * 1024, /* of one transformed tensor in a batch of tiles, about */
    SAVED_PRODUCTS = 84,       /* take as long as turning a kernel into 36 matrices instead of 16, about */
    FEW_TILES = 4,             /* or more columns to each */
    EVEN_SHARES = 4,           /* columns for each thread from which one more or less does not matter */
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

/* Of outputs, from tiles of side x side inputs. */
static int tile_of(const dp_conv_shape *s, int side)
{
    return side + 1 - s->kernel[0];
}

static int64_t positions(const dp_winograd_pass *p)
{
    return (int64_t)p->side * p->side;
}

/* Products for each pair of channels of an image of height x width outputs. */
static int64_t products(const dp_conv_shape *s, int side, int64_t height, int64_t width)
{
    int64_t tile = tile_of(s, side);
    return s->batch * ceil_div(height, tile) * ceil_div(width, tile) * side * side;
}

/* The larger tiles, unless what they save does not make up for turning the weights into 36 matrices. Smaller
 * ones have no room for kernels of 5x5. */
static int choose_side(const dp_conv_shape *s, int64_t height, int64_t width)
{
    if (s->kernel[0] > 3)
        return 6;
    return products(s, 4, height, width) <= products(s, 6, height, width) + SAVED_PRODUCTS ? 4 : 6;
}

/* How many tiles and pairs of blocks of columns are handled together. */
static void plan_parts(dp_winograd_pass *p, int threads)
{
    int64_t wide = p->from.blocks > 2 * p->pairs ? p->from.blocks : 2 * p->pairs;
    int64_t most = BATCH_FLOATS / (positions(p) * wide * p->lanes);
    most = (most > LEAST_TILES ? most : LEAST_TILES) * threads;
    if (FEW_TILES * p->tiles <= p->pairs * 2 * p->lanes && most < p->tiles)
        most = p->tiles; /* there is less of them than of the weights, which come in groups instead */
    p->batch = ceil_div(p->tiles, ceil_div(p->tiles, most)); /* of about the same size, in whole rows */
    p->batch = ceil_div(p->batch, DP_PRODUCT_ROWS) * DP_PRODUCT_ROWS;
    p->pair_count = p->pairs;
    p->group = p->rows;
    if (p->batch < p->tiles)
        return;
    p->group = p->rows < DP_PRODUCT_SUM_CHANNELS ? p->rows : DP_PRODUCT_SUM_CHANNELS;
    if (p->pairs % threads == 0 || p->pairs >= EVEN_SHARES * threads) {
        p->shares = threads;
        p->pair_count = 1;
    }
}

/* Everything but the pointers. backward: from the outputs' side to the inputs'. */
static dp_winograd_pass plan(const dp_conv_shape *s, int block, bool backward, int threads)
{
    dp_winograd_pass p = {.lanes = block,
                          .kernel = s->kernel[0],
                          .in_channels = s->in_channels,
                          .out_channels = s->out_channels,
                          .backward = backward};
    dp_winograd_image in = {NULL, ceil_div(s->in_channels, block), s->in_height, s->in_width};
    dp_winograd_image out = {NULL, ceil_div(s->out_channels, block), s->out_height, s->out_width};
    p.from = backward ? out : in;
    p.to = backward ? in : out;
    p.side = choose_side(s, p.to.height, p.to.width);
    p.tile = tile_of(s, p.side);
    for (int i = 0; i < 2; i++)
        p.padding[i] = backward ? s->kernel[0] - 1 - s->padding[i] : s->padding[i];
    p.tiles_down = ceil_div(p.to.height, p.tile);
    p.tiles_across = ceil_div(p.to.width, p.tile);
    p.tiles = s->batch * p.tiles_down * p.tiles_across;
    p.rows = p.from.blocks * p.lanes;
    p.pairs = ceil_div(p.to.blocks, 2);
    p.scaled_tiles = p.tiles <= p.pairs * 2 * p.lanes;
    plan_parts(&p, threads);
    return p;
}

/* Of the transformed weights and of `to`, for one share. */
static int64_t weights_floats(const dp_winograd_pass *p)
{
    return align(p->pair_count * positions(p) * dp_winograd_weights_step(p));
}

static int64_t to_floats(const dp_winograd_pass *p)
{
    return align(positions(p) * dp_winograd_to_step(p));
}

static int64_t from_floats(const dp_winograd_pass *p)
{
    return align(positions(p) * dp_winograd_from_step(p));
}

static int64_t places(const dp_winograd_pass *p)
{
    return p->shares > 0 ? p->shares : 1;
}

static size_t pass_bytes(const dp_winograd_pass *p)
{
    return (size_t)(places(p) * (weights_floats(p) + to_floats(p)) + from_floats(p)) * sizeof(float);
}

static void place_workspace(dp_winograd_pass *p, void *workspace)
{
    p->v = workspace;
    p->u = p->v + from_floats(p);
    p->m = p->u + places(p) * weights_floats(p);
}

size_t dp_winograd_workspace(const dp_conv_shape *shape, int block, int threads)
{
    dp_winograd_pass forward = plan(shape, block, false, threads),
                     backward = plan(shape, block, true, threads);
    size_t a = pass_bytes(&forward), b = pass_bytes(&backward);
    return a > b ? a : b;
}

static const dp_winograd_kernels *kernels_of(const dp_winograd_pass *p)
{
    if (p->lanes == 8)
        return p->side == 4 ? &dp_winograd_8_side4 : &dp_winograd_8_side6;
    return p->side == 4 ? &dp_winograd_16_side4 : &dp_winograd_16_side6;
}

/* Goes to the next batch of tiles; false behind the last. */
static bool next_batch(dp_winograd_pass *p)
{
    p->first += p->count;
    p->count = p->tiles - p->first < p->batch ? p->tiles - p->first : p->batch;
    return p->count > 0;
}

/* The same for groups of rows. */
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

/* How many groups of WEIGHT_ROWS rows, which are transformed together, there are now. */
static int64_t weights_items(const dp_winograd_pass *p)
{
    return p->pair_count * p->row_count / DP_WINOGRAD_WEIGHT_ROWS;
}

/* Blocks of `to` in these pairs: the last may have one alone. */
static int64_t blocks_of_to(const dp_winograd_pass *p)
{
    int64_t left = p->to.blocks - 2 * p->first_pair, most = 2 * p->pair_count;
    return left < most ? left : most;
}

/* A share of the pairs, one by one, by `one_pair`. */
static void walk_share(const dp_winograd_pass *p, int64_t share, void (*one_pair)(dp_winograd_pass *p))
{
    dp_winograd_pass own = *p;
    own.u += share * weights_floats(p);
    own.m += share * to_floats(p);
    int64_t end = p->pairs * (share + 1) / p->shares;
    for (own.first_pair = p->pairs * share / p->shares; own.first_pair < end; own.first_pair++)
        one_pair(&own);
}

static void convolve_pair(dp_winograd_pass *p)
{
    const dp_winograd_kernels *k = kernels_of(p);
    for (first_group(p); next_group(p);) {
        k->weights(p, 0, weights_items(p));
        k->products(p, 0, positions(p));
    }
    k->tiles_out(p, 0, blocks_of_to(p) * p->count);
}

static void convolve_shares(const void *pass, int64_t begin, int64_t end)
{
    for (int64_t share = begin; share < end; share++)
        walk_share(pass, share, convolve_pair);
}

/* With several batches there is one group, and its transformed weights stay. */
static void convolve(int threads, dp_winograd_pass *p)
{
    const dp_winograd_kernels *k = kernels_of(p);
    while (next_batch(p)) {
        dp_cpu_for(threads, p->from.blocks * p->count, 32, k->tiles_in, p);
        if (p->shares) {
            dp_cpu_for(threads, p->shares, 1, convolve_shares, p);
            continue;
        }
        for (first_group(p); next_group(p);) {
            if (p->first == 0)
                dp_cpu_for(threads, weights_items(p), 8, k->weights, p);
            dp_cpu_for(threads, positions(p) * p->pair_count, 1, k->products, p);
        }
        dp_cpu_for(threads, blocks_of_to(p) * p->count, 32, k->tiles_out, p);
    }
}

void dp_winograd_forward(int threads, const dp_conv_shape *shape, int block, const float *in,
                         const float *weights, const float *bias, bool relu, float *out, void *workspace)
{
    dp_winograd_pass p = plan(shape, block, false, threads);
    place_workspace(&p, workspace);
    p.from.data = in;
    p.out = out;
    p.weights = weights;
    p.bias = bias;
    p.relu = relu;
    convolve(threads, &p);
}

void dp_winograd_backward_data(int threads, const dp_conv_shape *shape, int block, const float *out_gradient,
                               const float *weights, float *in_gradient, void *workspace)
{
    dp_winograd_pass p = plan(shape, block, true, threads);
    place_workspace(&p, workspace);
    p.from.data = out_gradient;
    p.out = in_gradient;
    p.weights = weights;
    convolve(threads, &p);
}

static void gradient_of_pair(dp_winograd_pass *p)
{
    const dp_winograd_kernels *k = kernels_of(p);
    k->gradients_in(p, 0, blocks_of_to(p) * p->count);
    for (first_group(p); next_group(p);) {
        k->gradient_products(p, 0, positions(p));
        k->gather(p, 0, weights_items(p));
    }
}

static void gradient_shares(const void *pass, int64_t begin, int64_t end)
{
    for (int64_t share = begin; share < end; share++)
        walk_share(pass, share, gradient_of_pair);
}

void dp_winograd_backward_weights(int threads, const dp_conv_shape *shape, int block, const float *in,
                                  const float *out_gradient, float *weights_gradient, bool accumulate,
                                  void *workspace)
{
    dp_winograd_pass p = plan(shape, block, false, threads);
    const dp_winograd_kernels *k = kernels_of(&p);
    place_workspace(&p, workspace);
    p.from.data = in;
    p.to.data = out_gradient;
    p.weights_gradient = weights_gradient;
    p.accumulate = accumulate;
    while (next_batch(&p)) {
        dp_cpu_for(threads, p.from.blocks * p.count, 32, k->tiles_in, &p);
        if (p.shares) {
            dp_cpu_for(threads, p.shares, 1, gradient_shares, &p);
            continue;
        }
        dp_cpu_for(threads, blocks_of_to(&p) * p.count, 32, k->gradients_in, &p);
        for (first_group(&p); next_group(&p);) {
            dp_cpu_for(threads, positions(&p) * p.pair_count, 1, k->gradient_products, &p);
            if (p.first + p.count == p.tiles)
                dp_cpu_for(threads, weights_items(&p), 8, k->gather, &p);
        }
    }
}

bool dp_winograd_fits(const dp_conv_shape *s)
{
    enum { LEAST_CHANNELS = 16 };
    for (int i = 0; i < 2; i++)
        if (s->kernel[i] != s->kernel[0] || s->stride[i] != 1 || s->padding[i] > s->kernel[0] - 1)
            return false;
    if (s->kernel[0] != 3 && s->kernel[0] != 5)
        return false;
    /* A tile of 6x6 products multiplies 36 times, for a quarter of its 4x4 outputs as often as the direct
     * sum.
     */
    int64_t side = tile_of(s, 6), outputs = s->out_height * s->out_width;
    int64_t tiles = ceil_div(s->out_height, side) * ceil_div(s->out_width, side);
    return s->in_channels >= LEAST_CHANNELS && s->out_channels >= LEAST_CHANNELS &&
           4 * outputs >= tiles * side * side;
}
