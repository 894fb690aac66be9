/* Convolutions by oneDNN, our own Winograd or, of few pixels, our own products, in the layout that a fixed
 * rule chooses.
 *
 * The rule goes through pairs of (input, output) layouts and takes the first for which one of them has fast
 * code in every direction that is needed: blocked by 16 (AVX-512), by 8 (AVX2), channels last, plain. With
 * few input channels the input stays plain, and the weight gradient is thin_conv.c's where only that is
 * needed. Nothing is timed, so the same convolution always gets the same code on the same machine. */
#include <string.h>

#include "base/memory.h"
#include "cpu/bias.h"
#include "cpu/internal.h"
#include "cpu/layout.h"
#include "cpu/lowered.h"
#include "cpu/thin_conv.h"
#include "cpu/winograd.h"

typedef struct conv_op {
    dp_cpu_op common;
    dp_dnnl_conv *conv; /* NULL where one of our own is used */
    bool use_lowered;
    dp_lowered lowered;
    dp_winograd winograd;
    int given_tag, in_tag; /* how the input comes and how the primitives want it */
    dp_thin_conv thin;
    bool use_thin;
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

/* The input in the primitives' order: as it is, or a copy that forward makes. */
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
    if (c->conv)
        return dp_dnnl_conv_forward(c->conv, in, args->param[0], bias, args->out, args->workspace, err);
    if (!c->use_lowered) {
        dp_winograd_forward(threads, &c->winograd, in, args->param[0], bias, op->desc.relu, args->out,
                            args->workspace);
        return DP_OK;
    }
    dp_lowered_forward(threads, &c->lowered, in, args->param[0], args->out, args->workspace);
    if (bias || op->desc.relu)
        dp_cpu_add_bias(threads, &op->desc.out, op->out.tag, bias, op->desc.relu, args->out);
    return DP_OK;
}

static dp_status input_gradient(dp_op *op, const dp_op_args *args, dp_error *err)
{
    conv_op *c = op->state;
    int threads = c->common.device->threads;
    bool same = c->given_tag == c->in_tag;
    void *target = same ? args->in_gradient[0] : (char *)args->workspace + c->in_gradient_copy;
    if (c->conv)
        DP_TRY(dp_dnnl_conv_backward_data(c->conv, args->out_gradient, args->param[0], target,
                                          args->workspace, err));
    else if (c->use_lowered)
        dp_lowered_backward_data(threads, &c->lowered, args->out_gradient, args->param[0], target,
                                 args->workspace);
    else
        dp_winograd_backward_data(threads, &c->winograd, args->out_gradient, args->param[0], target,
                                  args->workspace);
    if (!same)
        dp_cpu_between(threads, &op->desc.in[0], c->in_tag, c->given_tag, target, args->in_gradient[0]);
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
        dp_thin_conv_gradient(threads, &c->thin, in, gate, args->out_gradient, dw, db, args->accumulate,
                              args->workspace);
        return DP_OK;
    }
    if (!c->conv && (gate || db))
        dp_cpu_bias_gradient(threads, &op->desc.out, op->out.tag, gate, args->out_gradient, db,
                             args->accumulate);
    else if (gate)
        dp_cpu_relu_mask(threads, (int64_t)(op->out.bytes / sizeof(float)), gate, args->out_gradient);
    if (args->in_gradient[0])
        DP_TRY(input_gradient(op, args, err));
    if (!dw && !db)
        return DP_OK;
    char *workspace = args->workspace;
    if (!c->conv) {
        if (dw && c->use_lowered)
            dp_lowered_backward_weights(threads, &c->lowered, in, args->out_gradient, dw, args->accumulate,
                                        workspace);
        else if (dw)
            dp_winograd_backward_weights(threads, &c->winograd, in, args->out_gradient, dw, args->accumulate,
                                         workspace);
        return DP_OK;
    }
    float *db_target = db && !args->accumulate ? db : (float *)(workspace + c->bias_copy);
    DP_TRY(dp_dnnl_conv_backward_weights(c->conv, in, args->out_gradient, dw, args->accumulate, db_target,
                                         workspace, err));
    if (db && args->accumulate)
        dp_cpu_store((int64_t)(c->common.param_bytes[1] / sizeof(float)), db_target, db, true);
    return DP_OK;
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
    const int64_t *in = d->in[0].dim, *out = d->out.dim;
    dp_dnnl_conv_config config = {.batch = in[0],
                                  .in_channels = in[1],
                                  .in_height = in[2],
                                  .in_width = in[3],
                                  .out_channels = out[1],
                                  .out_height = out[2],
                                  .out_width = out[3],
                                  .bias = d->params > 1,
                                  .relu = d->relu,
                                  .winograd = !r->direct_convolution,
                                  .forward = true,
                                  .backward_data = r->training && r->input_gradient[0]};
    for (int i = 0; i < 2; i++) {
        config.kernel[i] = d->kernel[i];
        config.stride[i] = d->stride[i];
        config.padding[i] = d->padding[i];
    }
    return config;
}

static dp_thin_conv thin_shape(const dp_dnnl_conv_config *config)
{
    dp_thin_conv thin = {.batch = config->batch,
                         .in_channels = config->in_channels,
                         .in_height = config->in_height,
                         .in_width = config->in_width,
                         .out_channels = config->out_channels,
                         .out_height = config->out_height,
                         .out_width = config->out_width,
                         .block = dp_cpu_block(config->out_tag)};
    memcpy(thin.kernel, config->kernel, sizeof thin.kernel);
    memcpy(thin.stride, config->stride, sizeof thin.stride);
    memcpy(thin.padding, config->padding, sizeof thin.padding);
    return thin;
}

/* A layout that came in can be turned into plain, and plain into any other; anything else is no candidate. */
static bool convertible(int from, int to)
{
    return from == to || from == DP_CPU_PLAIN || to == DP_CPU_PLAIN;
}

static bool own_winograd_fits(conv_op *c, const dp_dnnl_conv_config *config, layout_pair pair)
{
    c->winograd = (dp_winograd){.batch = config->batch,
                                .in_channels = config->in_channels,
                                .in_height = config->in_height,
                                .in_width = config->in_width,
                                .out_channels = config->out_channels,
                                .out_height = config->out_height,
                                .out_width = config->out_width,
                                .padding = {config->padding[0], config->padding[1]},
                                .kernel = config->kernel[0],
                                .block = dp_cpu_block(pair.in)};
    return config->winograd && pair.in == pair.out && c->winograd.block > 1 &&
           dp_winograd_fits(&c->winograd, config->kernel, config->stride);
}

static bool own_products_fit(conv_op *c, const dp_dnnl_conv_config *config, layout_pair pair)
{
    c->lowered = dp_lowered_of(config);
    return pair.in == DP_CPU_BLOCKED8 && pair.out == DP_CPU_BLOCKED8 && dp_lowered_fits(&c->lowered);
}

/* *found is left false where there is no fast code for this pair. The library's Winograd comes first: 3x3
 * kernels on AVX-512, blocked by 16. Our own comes before everything else that it has for a blocked order,
 * and also where it has nothing (for images of 2x2, say), if the machine's vectors are as long. */
static dp_status try_pair(conv_op *c, dp_cpu_device *device, dp_dnnl_conv_config *config, layout_pair pair,
                          bool reference, bool *found, dp_error *err)
{
    config->in_tag = pair.in;
    config->out_tag = pair.out;
    c->thin = thin_shape(config);
    c->use_thin =
        c->weights_wanted && !config->backward_data && pair.in == DP_CPU_PLAIN && dp_thin_conv_fits(&c->thin);
    c->in_tag = pair.in;
    config->backward_weights = c->weights_wanted && !c->use_thin;
    DP_TRY(dp_dnnl_conv_create(device->dnnl, config, reference, &c->conv, err));
    *found = c->conv != NULL;
    bool own = *found ? !dp_dnnl_conv_is_winograd(c->conv) : dp_cpu_block(pair.in) == dp_dnnl_lanes();
    bool winograd = own && own_winograd_fits(c, config, pair);
    c->use_lowered = own && !winograd && dp_dnnl_lanes() == 8 && own_products_fit(c, config, pair);
    if (winograd || c->use_lowered) {
        dp_dnnl_conv_destroy(c->conv);
        c->conv = NULL;
        *found = true;
    }
    return DP_OK;
}

static dp_status choose(conv_op *c, dp_cpu_device *device, dp_dnnl_conv_config *config, dp_error *err)
{
    bool few = config->in_channels <= FEW_CHANNELS;
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
    size_t total = c->conv          ? dp_dnnl_conv_scratch(c->conv)
                   : c->use_lowered ? dp_lowered_workspace(&c->lowered, threads)
                                    : dp_winograd_workspace(&c->winograd, threads);
    total = dp_align64(total);
    bool copied = c->given_tag != c->in_tag;
    c->keep_in_copy = copied && c->weights_wanted;
    if (c->use_thin) {
        size_t thin = dp_align64(dp_thin_conv_workspace(&c->thin));
        total = thin > total ? thin : total;
    }
    if (copied && !c->keep_in_copy)
        c->in_copy = dp_cpu_reserve(&total, in_bytes);
    if (copied && config->backward_data)
        c->in_gradient_copy = dp_cpu_reserve(&total, in_bytes);
    if (c->conv && config->backward_weights)
        c->bias_copy = dp_cpu_reserve(&total, (size_t)config->out_channels * sizeof(float));
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
