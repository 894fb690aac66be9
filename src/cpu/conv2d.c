/* Convolutions by oneDNN, our own Winograd or, of few pixels, our own matrix products, in the layout that a
 * fixed rule chooses.
 *
 * The rule goes through pairs of (input, output) layouts and takes the first for which one of them has fast
 * code in every direction that is needed: blocked by 16 (AVX-512), by 8 (AVX2), channels last, plain. With
 * few input channels the input stays plain, and the weight gradient is thin_conv.c's where only that is
 * needed. Nothing is timed, so the same convolution always gets the same code on the same machine. */
#include "base/memory.h"
#include "cpu/bias.h"
#include "cpu/im2col.h"
#include "cpu/internal.h"
#include "cpu/layout.h"
#include "cpu/thin_conv.h"
#include "cpu/winograd.h"

typedef struct conv_op {
    dp_cpu_op common;
    dp_conv_shape shape;
    enum { BY_LIBRARY, BY_WINOGRAD, BY_IM2COL } code;
    dp_dnnl_conv *conv;    /* BY_LIBRARY, else NULL */
    int block;             /* of the outputs, and of the inputs where the code is our own */
    int given_tag, in_tag; /* how the input comes and how the code wants it */
    bool use_thin;         /* for the gradient of the weights */
    bool training, weights_wanted;
    /* Offsets into workspace: the scratch of oneDNN or thin_conv is first. */
    size_t in_copy, in_gradient_copy, bias_copy;
    bool keep_in_copy; /* the re-ordered input is in saved, for backward */
} conv_op;

typedef struct layout_pair {
    int in, out;
} layout_pair;

static const layout_pair few_channels[] = {
    {DP_CPU_PLAIN, DP_CPU_BLOCKED16},   {DP_CPU_PLAIN, DP_CPU_BLOCKED8}, {DP_CPU_BLOCKED16, DP_CPU_BLOCKED16},
    {DP_CPU_BLOCKED8, DP_CPU_BLOCKED8}, {DP_CPU_NHWC, DP_CPU_NHWC},      {DP_CPU_PLAIN, DP_CPU_PLAIN},
};

static const layout_pair many_channels[] = {
    {DP_CPU_BLOCKED16, DP_CPU_BLOCKED16},
    {DP_CPU_BLOCKED8, DP_CPU_BLOCKED8},
    {DP_CPU_NHWC, DP_CPU_NHWC},
    {DP_CPU_PLAIN, DP_CPU_PLAIN},
};

enum { FEW_CHANNELS = 4 };

/* ---- what the operation does ---- */

/* The input in the code's order: as it is, or a copy that forward makes. */
static void *copied_input(const conv_op *c, const dp_op_args *args)
{
    return c->keep_in_copy ? args->saved : (char *)args->workspace + c->in_copy;
}

static dp_status conv_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    conv_op *c = op->state;
    int threads = c->common.device->threads;
    const dp_shape *shape = &op->desc.in[0];
    const void *in = args->in[0];
    if (c->given_tag != c->in_tag) {
        void *copy = copied_input(c, args);
        dp_cpu_between(threads, shape, c->given_tag, c->in_tag, in, copy);
        in = copy;
    }
    const float *bias = op->desc.params > 1 ? args->param[1] : NULL;
    switch (c->code) {
    case BY_LIBRARY:
        return dp_dnnl_conv_forward(c->conv, in, args->param[0], bias, args->out, args->workspace, err);
    case BY_WINOGRAD:
        dp_winograd_forward(threads, &c->shape, c->block, in, args->param[0], bias, op->desc.relu, args->out,
                            args->workspace);
        break;
    case BY_IM2COL:
        dp_im2col_take_in(threads, &c->shape, in, args->workspace);
        dp_im2col_forward(threads, &c->shape, args->param[0], args->out, args->workspace);
        if (bias || op->desc.relu)
            dp_cpu_add_bias(threads, &op->desc.out, op->out.tag, bias, op->desc.relu, args->out);
    }
    return DP_OK;
}

static dp_status input_gradient(dp_op *op, const dp_op_args *args, dp_error *err)
{
    conv_op *c = op->state;
    int threads = c->common.device->threads;
    bool same = c->given_tag == c->in_tag;
    void *target = same ? args->in_gradient[0] : (char *)args->workspace + c->in_gradient_copy;
    switch (c->code) {
    case BY_LIBRARY:
        DP_TRY(dp_dnnl_conv_backward_data(c->conv, args->out_gradient, args->param[0], target,
                                          args->workspace, err));
        break;
    case BY_WINOGRAD:
        dp_winograd_backward_data(threads, &c->shape, c->block, args->out_gradient, args->param[0], target,
                                  args->workspace);
        break;
    case BY_IM2COL:
        dp_im2col_backward_data(threads, &c->shape, args->param[0], target, args->workspace);
    }
    if (!same)
        dp_cpu_between(threads, &op->desc.in[0], c->in_tag, c->given_tag, target, args->in_gradient[0]);
    return DP_OK;
}

static dp_status weights_gradient(dp_op *op, const dp_op_args *args, const void *in, dp_error *err)
{
    conv_op *c = op->state;
    int threads = c->common.device->threads;
    float *dw = args->param_gradient[0], *db = args->param_gradient[1];
    char *workspace = args->workspace;
    if (c->code == BY_WINOGRAD && dw)
        dp_winograd_backward_weights(threads, &c->shape, c->block, in, args->out_gradient, dw,
                                     args->accumulate, workspace);
    if (c->code == BY_IM2COL && dw) {
        dp_im2col_take_in(threads, &c->shape, in, workspace);
        dp_im2col_backward_weights(threads, &c->shape, dw, args->accumulate, workspace);
    }
    if (c->code != BY_LIBRARY || (!dw && !db))
        return DP_OK;
    float *db_target = db && !args->accumulate ? db : (float *)(workspace + c->bias_copy);
    DP_TRY(dp_dnnl_conv_backward_weights(c->conv, in, args->out_gradient, dw, args->accumulate, db_target,
                                         workspace, err));
    if (db && args->accumulate)
        dp_cpu_store((int64_t)(c->common.param_bytes[1] / sizeof(float)), db_target, db, true);
    return DP_OK;
}

static dp_status conv_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    conv_op *c = op->state;
    int threads = c->common.device->threads;
    const void *in = c->given_tag != c->in_tag ? args->saved : args->in[0];
    float *dw = args->param_gradient[0], *db = args->param_gradient[1];
    const float *gate = op->desc.relu ? args->out : NULL;
    if (c->use_thin) {
        dp_thin_conv_gradient(threads, &c->shape, c->block, in, gate, args->out_gradient, dw, db,
                              args->accumulate, args->workspace);
        return DP_OK;
    }
    if (c->code != BY_LIBRARY && (gate || db))
        dp_cpu_bias_gradient(threads, &op->desc.out, op->out.tag, gate, args->out_gradient, db,
                             args->accumulate);
    else if (gate)
        dp_cpu_relu_mask(threads, (int64_t)(op->out.bytes / sizeof(float)), gate, args->out_gradient);
    if (c->code == BY_IM2COL)
        dp_im2col_take_out(threads, &c->shape, args->out_gradient, args->workspace);
    if (args->in_gradient[0])
        DP_TRY(input_gradient(op, args, err));
    return weights_gradient(op, args, in, err);
}

static void conv_destroy(dp_cpu_op *op)
{
    conv_op *c = (conv_op *)op;
    dp_dnnl_conv_destroy(c->conv);
    dp_free(c);
}

/* ---- choosing ---- */

static dp_dnnl_conv_config configuration(const dp_op_request *r)
{
    const dp_op_desc *d = r->desc;
    return (dp_dnnl_conv_config){.shape = dp_conv_shape_of(d, &d->in[0], &d->out),
                                 .bias = d->params > 1,
                                 .relu = d->relu,
                                 .winograd = !r->direct_convolution,
                                 .forward = true,
                                 .backward_data = r->training && r->input_gradient[0]};
}

/* A layout that came in can be turned into plain, and plain into any other; anything else is no candidate. */
static bool convertible(int from, int to)
{
    return from == to || from == DP_CPU_PLAIN || to == DP_CPU_PLAIN;
}

/* Our own code for a pair of layouts; BY_LIBRARY if there is none. */
static int own_code(const dp_dnnl_conv_config *config, layout_pair pair)
{
    if (pair.in != pair.out || dp_cpu_block(pair.in) == 1)
        return BY_LIBRARY;
    if (config->winograd && dp_winograd_fits(&config->shape))
        return BY_WINOGRAD;
    return dp_im2col_fits(&config->shape, pair.in) ? BY_IM2COL : BY_LIBRARY;
}

/* *found is left false where there is no fast code for this pair. The library's Winograd comes first: 3x3
 * kernels on AVX-512, blocked by 16. Our own code comes before everything else that it has for a blocked
 * order, and also where it has nothing (for images of 2x2, say), if the machine's vectors are as long. */
static dp_status try_pair(conv_op *c, dp_cpu_device *device, dp_dnnl_conv_config *config, layout_pair pair,
                          bool reference, bool *found, dp_error *err)
{
    config->in_tag = c->in_tag = pair.in;
    config->out_tag = pair.out;
    c->block = dp_cpu_block(pair.out);
    c->use_thin = c->weights_wanted && !config->backward_data && pair.in == DP_CPU_PLAIN &&
                  dp_thin_conv_fits(&c->shape, c->block);
    config->backward_weights = c->weights_wanted && !c->use_thin;
    DP_TRY(dp_dnnl_conv_create(device->dnnl, config, reference, &c->conv, err));
    bool offered = c->conv != NULL;
    bool own = offered ? !dp_dnnl_conv_is_winograd(c->conv) : dp_cpu_block(pair.in) == dp_dnnl_lanes();
    c->code = own ? own_code(config, pair) : BY_LIBRARY;
    if (c->code != BY_LIBRARY) {
        dp_dnnl_conv_destroy(c->conv);
        c->conv = NULL;
    }
    *found = offered || c->code != BY_LIBRARY;
    return DP_OK;
}

static dp_status choose(conv_op *c, dp_cpu_device *device, dp_dnnl_conv_config *config, dp_error *err)
{
    bool few = c->shape.in_channels <= FEW_CHANNELS;
    const layout_pair *pairs = few ? few_channels : many_channels;
    size_t count = few ? sizeof few_channels / sizeof *pairs : sizeof many_channels / sizeof *pairs;
    bool found = false;
    for (size_t i = 0; i < count && !found; i++)
        if (convertible(c->given_tag, pairs[i].in))
            DP_TRY(try_pair(c, device, config, pairs[i], false, &found, err));
    if (!found)
        DP_TRY(try_pair(c, device, config, (layout_pair){DP_CPU_PLAIN, DP_CPU_PLAIN}, true, &found, err));
    if (!found)
        return dp_fail(err, DP_ERROR_DEVICE, "oneDNN has no code for this convolution");
    return DP_OK;
}

static void plan_memory(conv_op *c, const dp_dnnl_conv_config *config, int threads, dp_op *out)
{
    size_t in_bytes = dp_cpu_layout(&out->desc.in[0], c->in_tag).bytes;
    size_t total = 0;
    switch (c->code) {
    case BY_LIBRARY:
        total = dp_dnnl_conv_scratch(c->conv);
        break;
    case BY_WINOGRAD:
        total = dp_winograd_workspace(&c->shape, c->block, threads);
        break;
    case BY_IM2COL:
        total = dp_im2col_workspace(&c->shape, threads);
    }
    total = dp_align64(total);
    bool copied = c->given_tag != c->in_tag;
    c->keep_in_copy = copied && c->weights_wanted;
    if (c->use_thin) {
        size_t thin = dp_align64(dp_thin_conv_workspace(&c->shape, c->block));
        total = thin > total ? thin : total;
    }
    if (copied && !c->keep_in_copy)
        c->in_copy = dp_cpu_reserve(&total, in_bytes);
    if (copied && config->backward_data)
        c->in_gradient_copy = dp_cpu_reserve(&total, in_bytes);
    if (c->code == BY_LIBRARY && config->backward_weights)
        c->bias_copy = dp_cpu_reserve(&total, (size_t)c->shape.out_channels * sizeof(float));
    out->workspace_bytes = total;
    out->saved_bytes = c->keep_in_copy ? in_bytes : 0;
    out->backward_reads_input = c->weights_wanted && !copied;
    out->backward_reads_output = c->training && out->desc.relu;
}

dp_status dp_cpu_conv2d_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    conv_op *c;
    DP_TRY(dp_calloc(1, sizeof *c, "a convolution", &c, err));
    c->common = (dp_cpu_op){.forward = conv_forward, .backward = conv_backward, .destroy = conv_destroy};
    c->given_tag = request->in[0].tag;
    c->training = request->training;
    c->weights_wanted = request->training && (request->param_gradient[0] || request->param_gradient[1]);
    dp_dnnl_conv_config config = configuration(request);
    c->shape = config.shape;
    dp_status status = choose(c, device, &config, err);
    if (status != DP_OK) {
        conv_destroy(&c->common);
        return status;
    }
    plan_memory(c, &config, device->threads, out);
    out->out = dp_cpu_layout(&request->desc->out, config.out_tag);
    out->state = c;
    return DP_OK;
}
