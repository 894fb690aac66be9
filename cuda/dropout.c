/* Dropout of elements and of channels. Both directions draw the same numbers, so nothing is kept between
 * them; the input's gradient takes the place of the output's. */
#include <math.h>

#include "base/memory.h"
#include "base/rng.h"
#include "internal.h"
#include "kernels/kernels.h"

typedef struct dropout_op {
    dp_cuda_op common;
    dp_dropout_parameters parameters; /* but seed, step and sample */
    bool training;
} dropout_op;

static dp_status drop(dp_device *device, const dropout_op *d, cudaStream_t stream, const dp_op_random *random,
                      const float *x, float *y, dp_error *err)
{
    dp_dropout_parameters p = d->parameters;
    p.seed = random->seed;
    p.step = random->step;
    p.first_sample = random->first_sample;
    DP_CUDA_TRY(dp_cuda_state(device)->label, err, dp_dropout(stream, &p, x, y));
    return DP_OK;
}

static dp_status dropout_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                 dp_error *err)
{
    const dropout_op *d = op->state;
    if (!d->training)
        return dp_cuda_copy(device, stream, device, args->out, device, args->in[0], op->out.bytes, err);
    return drop(device, d, stream, args->random, args->in[0], args->out, err);
}

static dp_status dropout_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                  dp_error *err)
{
    if (!args->in_gradient[0])
        return DP_OK;
    return drop(device, op->state, stream, args->random, args->out_gradient, args->in_gradient[0], err);
}

dp_status dp_cuda_dropout_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    const dp_op_desc *desc = request->desc;
    const bool channels = desc->kind == DP_OP_DROPOUT2D;
    const int64_t sample = dp_shape_sample_elements(&desc->in[0]);
    DP_TRY(dp_cuda_check_size(device, "dropout", &desc->in[0], err));
    dropout_op *d;
    DP_TRY(dp_calloc(1, sizeof *d, "a dropout", &d, err));
    d->common = (dp_cuda_op){
        .forward = dropout_forward, .backward = dropout_backward, .destroy = dp_cuda_plain_destroy};
    /* A number is a whole multiple of 2^-24: u >= p if and only if u 2^24 >= ceil(p 2^24). */
    d->parameters = (dp_dropout_parameters){.first_element = (uint64_t)desc->layer << 40,
                                            .purpose = DP_RNG_DROPOUT,
                                            .threshold = (uint32_t)ceil(desc->probability * 0x1p24),
                                            .scale = (float)(1 / (1 - desc->probability)),
                                            .samples = desc->in[0].dim[0],
                                            .elements = channels ? desc->in[0].dim[1] : sample,
                                            .repeat = channels ? sample / desc->in[0].dim[1] : 1};
    d->training = request->training;
    out->passes_gradient[0] = request->input_gradient[0];
    out->state = d;
    return DP_OK;
}
