/* A model at one chunk size on one device: which operation runs in which memory. Made once, run any number of
 * times.
 *
 * A plan owns its operations but no memory: several plans of a device (the full chunk, the last one of an
 * epoch, one for validation) run one after the other in the same blocks, which are as large as the largest
 * plan wants. */
#ifndef DP_NN_PLAN_H
#define DP_NN_PLAN_H

#include "device/device.h"
#include "nn/graph.h"

typedef struct dp_plan_value {
    dp_layout layout;
    void *data, *gradient; /* set by dp_plan_bind; NULL where there is none */
    int data_block, gradient_block;
    dp_value storage; /* the value whose memory it shares; itself, but for aliases */
    bool wanted;      /* it needs a gradient */
} dp_plan_value;

typedef struct dp_plan_step {
    const dp_node *node;
    dp_op op;
    bool alias;                         /* nothing to do: the output is the input, read with another shape */
    bool backward;                      /* it has a gradient to compute */
    bool reads_batch[DP_OP_MAX_INPUTS]; /* the input is the batch itself, which comes with each call */
    bool param_gradient[DP_OP_MAX_PARAMS];
    /* What becomes of the gradient of an input: written where it belongs; or, where another reader has
     * written before, to a block of its own and then added; or taken from out_gradient, where the operation
     * leaves it. */
    struct dp_plan_flow {
        bool wanted, taken, added;
        int block; /* of its own, -1 for none */
        void *source;
        float *target;
        size_t bytes;
    } flow[DP_OP_MAX_INPUTS];
    int saved_block;
    dp_op_args args; /* everything but the input of the first step and the batch's gradients is set by
                        dp_plan_bind */
} dp_plan_step;

typedef struct dp_plan {
    dp_device *device;
    const dp_model *model;
    int64_t samples;
    bool training;
    int step_count;
    dp_plan_step *steps;
    dp_plan_value *values; /* by dp_value */
    struct dp_block *blocks;
    int block_count;
    size_t activation_bytes, workspace_bytes; /* what it wants of the device */
    float *output,
        *output_gradient; /* plain [samples, ...]; valid after dp_plan_bind; gradient: training only */
} dp_plan;

/* The memory a plan runs in. Parameters and gradients are flat arenas; offset[p] is where parameter p starts
 * in both, in elements. buffers: all float32 buffers of the model; keep_running: training moves them. */
typedef struct dp_plan_memory {
    void *activations, *workspace;
    const float *parameters;
    float *gradients;
    const int64_t *offset;
    float *buffers;
    bool keep_running;
    const dp_op_random *random; /* read during forward and backward */
} dp_plan_memory;

typedef struct dp_plan_options {
    bool training;
    bool direct_convolution;
    const bool *trainable; /* by parameter; read during create */
} dp_plan_options;

/* To be called by the device's own thread. Owner: the caller. */
dp_status dp_plan_create(dp_device *device, const dp_model *model, int64_t samples,
                         const dp_plan_options *options, dp_plan **out, dp_error *err);
void dp_plan_free(dp_plan *plan); /* NULL is fine */

/* Points the plan at memory of at least the sizes that it wants. To be repeated when the memory moves. */
void dp_plan_bind(dp_plan *plan, const dp_plan_memory *memory);

/* input: plain [samples, ...] on the device. Steps run in order 0 .. step_count - 1; output is then complete.
 */
dp_status dp_plan_forward(dp_plan *plan, int step, const float *input, dp_stream *stream, dp_error *err);
/* Steps run in order step_count - 1 .. 0, after output_gradient was filled. accumulate: add to the
 * parameters' gradients instead of overwriting them. */
dp_status dp_plan_backward(dp_plan *plan, int step, const float *input, bool accumulate, dp_stream *stream,
                           dp_error *err);

#endif
