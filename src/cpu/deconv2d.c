/* Deconvolutions (transposed convolutions) by oneDNN or, of few pixels, by our own matrix products.
 *
 * A deconvolution from x to y is what a convolution from y to x, with the same weights, does to gradients:
 * its forward pass is that convolution's data gradient, its own data gradient is that convolution's forward
 * pass, and its weight gradient that convolution's with x and y's gradient exchanged. The layouts are chosen
 * as for convolutions (conv2d.c). Bias and ReLU are passes of our own (bias.c). */
#include "base/memory.h"
#include "cpu/bias.h"
#include "cpu/im2col.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

typedef struct deconv_op {
    dp_cpu_op common;
    dp_conv_shape shape;            /* of the convolution from y to x */
    dp_dnnl_conv *conv;             /* NULL where our own products are used */
    int given_tag, in_tag, out_tag; /* how x comes, how the primitives want it, how y lies */
    /* Offsets into workspace, behind the scratch memory of oneDNN or of our own. */
    size_t in_copy, in_gradient_copy;
    bool keep_in_copy; /* the re-ordered x is in saved, for backward */
} deconv_op;

/* ---- what the operation does ---- */

/* x as the primitives want it: as it is, or a copy that forward makes. */
static const void *wanted_input(const deconv_op *d, const dp_op_args *args)
{
    if (d->given_tag == d->in_tag)
        return args->in[0];
    return d->keep_in_copy ? args->saved : (char *)args->workspace + d->in_copy;
}

static dp_status deconv_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    deconv_op *d = op->state;
    int threads = d->common.device->threads;
    const void *in = wanted_input(d, args);
    if (d->given_tag != d->in_tag)
        dp_cpu_between(threads, &op->desc.in[0], d->given_tag, d->in_tag, args->in[0], (void *)in);
    if (d->conv)
        DP_TRY(dp_dnnl_conv_backward_data(d->conv, in, args->param[0], args->out, args->workspace, err));
    else {
        dp_im2col_take_out(threads, &d->shape, in, args->workspace);
        dp_im2col_backward_data(threads, &d->shape, args->param[0], args->out, args->workspace);
    }
    const float *bias = op->desc.params > 1 ? args->param[1] : NULL;
    if (bias || op->desc.relu)
        dp_cpu_add_bias(threads, &op->desc.out, d->out_tag, bias, op->desc.relu, args->out);
    return DP_OK;
}

static dp_status input_gradient(dp_op *op, const dp_op_args *args, dp_error *err)
{
    deconv_op *d = op->state;
    bool same = d->given_tag == d->in_tag;
    void *target = same ? args->in_gradient[0] : (char *)args->workspace + d->in_gradient_copy;
    int threads = d->common.device->threads;
    if (d->conv)
        DP_TRY(dp_dnnl_conv_forward(d->conv, args->out_gradient, args->param[0], NULL, target,
                                    args->workspace, err));
    else
        dp_im2col_forward(threads, &d->shape, args->param[0], target, args->workspace);
    if (!same)
        dp_cpu_between(threads, &op->desc.in[0], d->in_tag, d->given_tag, target, args->in_gradient[0]);
    return DP_OK;
}

static dp_status deconv_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    deconv_op *d = op->state;
    int threads = d->common.device->threads;
    float *dw = args->param_gradient[0], *db = args->param_gradient[1];
    const float *gate = op->desc.relu ? args->out : NULL;
    if (gate || db)
        dp_cpu_bias_gradient(threads, &op->desc.out, d->out_tag, gate, args->out_gradient, db,
                             args->accumulate);
    if (!d->conv)
        dp_im2col_take_in(threads, &d->shape, args->out_gradient, args->workspace);
    if (args->in_gradient[0])
        DP_TRY(input_gradient(op, args, err));
    if (!dw)
        return DP_OK;
    if (!d->conv) {
        dp_im2col_take_out(threads, &d->shape, wanted_input(d, args), args->workspace);
        dp_im2col_backward_weights(threads, &d->shape, dw, args->accumulate, args->workspace);
        return DP_OK;
    }
    return dp_dnnl_conv_backward_weights(d->conv, args->out_gradient, wanted_input(d, args), dw,
                                         args->accumulate, NULL, args->workspace, err);
}

static void deconv_destroy(dp_cpu_op *op)
{
    deconv_op *d = (deconv_op *)op;
    dp_dnnl_conv_destroy(d->conv);
    dp_free(d);
}

/* ---- choosing ---- */

/* The convolution from y to x. */
static dp_dnnl_conv_config configuration(const dp_op_request *r)
{
    const dp_op_desc *d = r->desc;
    return (dp_dnnl_conv_config){.shape = dp_conv_shape_of(d, &d->out, &d->in[0]),
                                 .winograd = !r->direct_convolution,
                                 .forward = r->training && r->input_gradient[0],
                                 .backward_data = true,
                                 .backward_weights = r->training && r->param_gradient[0]};
}

/* The first layout that there is fast code for and that x can be copied to, else plain. */
static dp_status choose(deconv_op *d, dp_cpu_device *device, dp_dnnl_conv_config *config, dp_error *err)
{
    static const int tags[] = {DP_CPU_BLOCKED16, DP_CPU_BLOCKED8, DP_CPU_NHWC, DP_CPU_PLAIN};
    const int count = sizeof tags / sizeof *tags;
    d->shape = config->shape;
    for (int i = 0; i <= count && !d->conv; i++) {
        bool last = i == count;
        int tag = last ? DP_CPU_PLAIN : tags[i];
        if (tag != d->given_tag && tag != DP_CPU_PLAIN && d->given_tag != DP_CPU_PLAIN)
            continue;
        config->in_tag = config->out_tag = d->in_tag = d->out_tag = tag;
        if (dp_im2col_fits(&d->shape, tag))
            return DP_OK;
        DP_TRY(dp_dnnl_conv_create(device->dnnl, config, last, &d->conv, err));
    }
    if (!d->conv)
        return dp_fail(err, DP_ERROR_DEVICE, "oneDNN has no code for this deconvolution");
    return DP_OK;
}

static void plan_memory(deconv_op *d, const dp_dnnl_conv_config *config, int threads, dp_op *out)
{
    size_t in_bytes = dp_cpu_layout(&out->desc.in[0], d->in_tag).bytes;
    size_t total =
        dp_align64(d->conv ? dp_dnnl_conv_scratch(d->conv) : dp_im2col_workspace(&d->shape, threads));
    bool copied = d->given_tag != d->in_tag;
    d->keep_in_copy = copied && config->backward_weights;
    if (copied && !d->keep_in_copy)
        d->in_copy = dp_cpu_reserve(&total, in_bytes);
    if (copied && config->forward)
        d->in_gradient_copy = dp_cpu_reserve(&total, in_bytes);
    out->workspace_bytes = total;
    out->saved_bytes = d->keep_in_copy ? in_bytes : 0;
    out->backward_reads_input = config->backward_weights && !copied;
}

dp_status dp_cpu_deconv2d_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                 dp_error *err)
{
    deconv_op *d;
    DP_TRY(dp_calloc(1, sizeof *d, "a deconvolution", &d, err));
    d->common =
        (dp_cpu_op){.forward = deconv_forward, .backward = deconv_backward, .destroy = deconv_destroy};
    d->given_tag = request->in[0].tag;
    dp_dnnl_conv_config config = configuration(request);
    dp_status status = choose(d, device, &config, err);
    if (status != DP_OK) {
        deconv_destroy(&d->common);
        return status;
    }
    plan_memory(d, &config, device->threads, out);
    out->backward_reads_output = request->training && request->desc->relu;
    out->out = dp_cpu_layout(&request->desc->out, d->out_tag);
    out->state = d;
    return DP_OK;
}
