/* Everything that touches oneDNN's types (version 2.x: operation descriptors). */
#include "cpu/onednn.h"

#include <dnnl.h>
#include <string.h>

#include "base/memory.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

#if DNNL_VERSION_MAJOR != 2
#error \
    "dptrain's CPU backend is written for oneDNN 2.x (Debian: libdnnl-dev 2.6); this is another major version"
#endif

struct dp_dnnl {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

static dp_status failed(dp_error *err, const char *call, dnnl_status_t status)
{
    return dp_fail(err, status == dnnl_out_of_memory ? DP_ERROR_MEMORY : DP_ERROR_DEVICE,
                   "oneDNN: %s failed with status %d%s", call, (int)status,
                   status == dnnl_out_of_memory ? " (out of memory)" : "");
}

#define DNNL_TRY(call, name)                        \
    do {                                            \
        dnnl_status_t dnnl_status_ = (call);        \
        if (dnnl_status_ != dnnl_success)           \
            return failed(err, name, dnnl_status_); \
    } while (0)

dp_status dp_dnnl_open(dp_dnnl **out, dp_error *err)
{
    *out = NULL;
    dp_dnnl *dnnl;
    DP_TRY(dp_calloc(1, sizeof *dnnl, "the oneDNN engine", &dnnl, err));
    dnnl_status_t status = dnnl_engine_create(&dnnl->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&dnnl->stream, dnnl->engine, dnnl_stream_in_order);
    if (status != dnnl_success) {
        dp_dnnl_close(dnnl);
        return failed(err, "making an engine", status);
    }
    *out = dnnl;
    return DP_OK;
}

void dp_dnnl_close(dp_dnnl *dnnl)
{
    if (!dnnl)
        return;
    if (dnnl->stream)
        dnnl_stream_destroy(dnnl->stream);
    if (dnnl->engine)
        dnnl_engine_destroy(dnnl->engine);
    dp_free(dnnl);
}

static bool offers(dnnl_cpu_isa_t wanted)
{
    return ((int)dnnl_get_effective_cpu_isa() & (int)wanted) == (int)wanted;
}

int dp_dnnl_lanes(void)
{
    return offers(dnnl_cpu_isa_avx512_core) ? 16 : offers(dnnl_cpu_isa_avx2) ? 8 : 4;
}

dp_status dp_dnnl_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
                        int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                        dp_error *err)
{
    DNNL_TRY(dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, beta,
                        c, ldc),
             "a matrix product");
    return DP_OK;
}

/* ---- convolution ---- */

enum { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS, DIRECTIONS };
enum { IN, WEIGHTS, BIAS, OUT, SCRATCH, TENSORS };

/* A copy of weights between the plain order and another. */
typedef struct reordering {
    dnnl_primitive_t primitive;
    dnnl_memory_t from, to;
} reordering;

/* One primitive with its tensors, whose memory is set at each call. */
typedef struct direction {
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    dnnl_memory_desc_t weights; /* the order that it wants */
    size_t weights_bytes, scratch_bytes;
    dnnl_memory_t tensor[TENSORS];
    reordering reordering; /* of the weights to its order, or of their gradient from it */
    bool reorders;         /* else its order is the plain one */
} direction;

struct dp_dnnl_conv {
    dp_dnnl *dnnl;
    dp_dnnl_conv_config config;
    dnnl_memory_desc_t in, plain_weights, any_weights, bias, out;
    direction directions[DIRECTIONS];
    reordering sum; /* of a weight gradient from the order of its primitive, added to what is there */
};

static dnnl_format_tag_t format_tag(int tag)
{
    switch (tag) {
    case DP_CPU_NHWC:
        return dnnl_nhwc;
    case DP_CPU_BLOCKED8:
        return dnnl_nChw8c;
    case DP_CPU_BLOCKED16:
        return dnnl_nChw16c;
    default:
        return dnnl_nchw;
    }
}

static dp_status describe_tensors(dp_dnnl_conv *conv, dp_error *err)
{
    const dp_dnnl_conv_config *c = &conv->config;
    const dp_conv_shape *s = &c->shape;
    dnnl_dims_t in = {s->batch, s->in_channels, s->in_height, s->in_width};
    dnnl_dims_t weights = {s->out_channels, s->in_channels, s->kernel[0], s->kernel[1]};
    dnnl_dims_t out = {s->batch, s->out_channels, s->out_height, s->out_width};
    dnnl_dims_t bias = {s->out_channels};
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&conv->in, 4, in, dnnl_f32, format_tag(c->in_tag)),
             "a description");
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&conv->out, 4, out, dnnl_f32, format_tag(c->out_tag)),
             "a description");
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&conv->plain_weights, 4, weights, dnnl_f32, dnnl_oihw),
             "a description");
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&conv->any_weights, 4, weights, dnnl_f32, dnnl_format_tag_any),
             "a description");
    if (c->bias)
        DNNL_TRY(dnnl_memory_desc_init_by_tag(&conv->bias, 1, bias, dnnl_f32, dnnl_a), "a description");
    return DP_OK;
}

static dnnl_status_t make_attributes(bool relu, dnnl_primitive_attr_t *out)
{
    dnnl_status_t status = dnnl_primitive_attr_create(out);
    if (status != dnnl_success)
        return status;
    status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !relu)
        return status;
    dnnl_post_ops_t post;
    status = dnnl_post_ops_create(&post);
    if (status != dnnl_success)
        return status;
    status = dnnl_post_ops_append_eltwise(post, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(*out, post);
    dnnl_post_ops_destroy(post);
    return status;
}

static dnnl_status_t make_desc(dp_dnnl_conv *conv, int which, dnnl_alg_kind_t algorithm,
                               const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out)
{
    const dp_dnnl_conv_config *c = &conv->config;
    const dp_conv_shape *s = &c->shape;
    dnnl_dims_t stride = {s->stride[0], s->stride[1]}, padding = {s->padding[0], s->padding[1]};
    const dnnl_memory_desc_t *bias = c->bias ? &conv->bias : NULL;
    dnnl_convolution_desc_t desc;
    dnnl_status_t status;
    if (which == FORWARD)
        status = dnnl_convolution_forward_desc_init(&desc, dnnl_forward_training, algorithm, &conv->in,
                                                    &conv->any_weights, bias, &conv->out, stride, padding,
                                                    padding);
    else if (which == BACKWARD_DATA)
        status = dnnl_convolution_backward_data_desc_init(&desc, algorithm, &conv->in, &conv->any_weights,
                                                          &conv->out, stride, padding, padding);
    else
        status = dnnl_convolution_backward_weights_desc_init(&desc, algorithm, &conv->in, &conv->any_weights,
                                                             bias, &conv->out, stride, padding, padding);
    if (status != dnnl_success)
        return status;
    dnnl_primitive_attr_t attributes = NULL;
    status = make_attributes(which == FORWARD && c->relu, &attributes);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(out, &desc, attributes, conv->dnnl->engine, hint);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    return status;
}

/* The description of one direction by one algorithm; backward ones need a forward one as a hint. */
static dnnl_status_t make_desc_with_hint(dp_dnnl_conv *conv, int which, dnnl_alg_kind_t algorithm,
                                         dnnl_primitive_desc_t *out)
{
    *out = NULL;
    if (which == FORWARD)
        return make_desc(conv, FORWARD, algorithm, NULL, out);
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t status = make_desc(conv, FORWARD, algorithm, NULL, &hint);
    if (status != dnnl_success)
        return status;
    status = make_desc(conv, which, algorithm, hint, out);
    dnnl_primitive_desc_destroy(hint);
    return status;
}

/* The library's name of the code; "ref:any" is its slow reference. */
static const char *implementation(const_dnnl_primitive_desc_t desc)
{
    const char *name = NULL;
    dnnl_status_t status = dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name);
    return status == dnnl_success && name ? name : "ref";
}

static bool is_reference(const_dnnl_primitive_desc_t desc)
{
    return strncmp(implementation(desc), "ref", 3) == 0;
}

/* Winograd where it is wanted and offered, else direct. *offered tells whether it is not the slow code. */
static dp_status choose(dp_dnnl_conv *conv, int which, bool *offered, dp_error *err)
{
    dnnl_primitive_desc_t *desc = &conv->directions[which].desc;
    *offered = true;
    if (conv->config.winograd) {
        dnnl_status_t status = make_desc_with_hint(conv, which, dnnl_convolution_winograd, desc);
        if (status == dnnl_success && !is_reference(*desc))
            return DP_OK;
        if (*desc)
            dnnl_primitive_desc_destroy(*desc);
        *desc = NULL;
        if (status == dnnl_out_of_memory)
            return failed(err, "planning a convolution", status);
    }
    dnnl_status_t status = make_desc_with_hint(conv, which, dnnl_convolution_direct, desc);
    if (status == dnnl_unimplemented) {
        *offered = false;
        return DP_OK;
    }
    DNNL_TRY(status, "planning a convolution");
    *offered = !is_reference(*desc);
    return DP_OK;
}

static dp_status make_memory(dp_dnnl_conv *conv, const dnnl_memory_desc_t *desc, dnnl_memory_t *out,
                             dp_error *err)
{
    DNNL_TRY(dnnl_memory_create(out, desc, conv->dnnl->engine, DNNL_MEMORY_NONE), "describing a tensor");
    return DP_OK;
}

static dp_status finish_direction(dp_dnnl_conv *conv, int which, dp_error *err)
{
    direction *d = &conv->directions[which];
    DNNL_TRY(dnnl_primitive_create(&d->primitive, d->desc), "making a convolution");
    dnnl_query_t query = which == BACKWARD_WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    const dnnl_memory_desc_t *weights = dnnl_primitive_desc_query_md(d->desc, query, 0);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(d->desc, dnnl_query_scratchpad_md, 0);
    if (!weights || !scratch)
        return failed(err, "asking a convolution for its tensors", dnnl_invalid_arguments);
    d->weights = *weights;
    d->weights_bytes = dnnl_memory_desc_get_size(weights);
    d->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    DP_TRY(make_memory(conv, &conv->in, &d->tensor[IN], err));
    DP_TRY(make_memory(conv, &d->weights, &d->tensor[WEIGHTS], err));
    DP_TRY(make_memory(conv, &conv->out, &d->tensor[OUT], err));
    DP_TRY(make_memory(conv, scratch, &d->tensor[SCRATCH], err));
    if (conv->config.bias && which != BACKWARD_DATA)
        DP_TRY(make_memory(conv, &conv->bias, &d->tensor[BIAS], err));
    return DP_OK;
}

static dnnl_status_t make_sum(dnnl_primitive_attr_t *out)
{
    dnnl_status_t status = dnnl_primitive_attr_create(out);
    if (status != dnnl_success)
        return status;
    dnnl_post_ops_t post;
    status = dnnl_post_ops_create(&post);
    if (status != dnnl_success)
        return status;
    status = dnnl_post_ops_append_sum(post, 1.0f);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(*out, post);
    dnnl_post_ops_destroy(post);
    return status;
}

/* sum: added to what is there. */
static dp_status make_reordering(dp_dnnl_conv *conv, const dnnl_memory_desc_t *from,
                                 const dnnl_memory_desc_t *to, bool sum, reordering *out, dp_error *err)
{
    dnnl_engine_t engine = conv->dnnl->engine;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = sum ? make_sum(&attributes) : dnnl_success;
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&desc, from, engine, to, engine, attributes);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    DNNL_TRY(status, "planning a re-ordering");
    status = dnnl_primitive_create(&out->primitive, desc);
    dnnl_primitive_desc_destroy(desc);
    DNNL_TRY(status, "making a re-ordering");
    DP_TRY(make_memory(conv, from, &out->from, err));
    return make_memory(conv, to, &out->to, err);
}

/* The primitives exist: plans how the weights get to them. */
static dp_status plan_weights(dp_dnnl_conv *conv, dp_error *err)
{
    const dnnl_memory_desc_t *plain = &conv->plain_weights;
    for (int i = 0; i < DIRECTIONS; i++) {
        direction *d = &conv->directions[i];
        d->reorders = d->primitive && !dnnl_memory_desc_equal(&d->weights, plain);
        if (!d->reorders)
            continue;
        bool back = i == BACKWARD_WEIGHTS;
        DP_TRY(make_reordering(conv, back ? &d->weights : plain, back ? plain : &d->weights, false,
                               &d->reordering, err));
        if (back)
            DP_TRY(make_reordering(conv, &d->weights, plain, true, &conv->sum, err));
    }
    return DP_OK;
}

size_t dp_dnnl_conv_scratch(const dp_dnnl_conv *conv)
{
    size_t most = 0;
    for (int i = 0; i < DIRECTIONS; i++) {
        const direction *d = &conv->directions[i];
        /* A gradient that is to be added needs room of its own, whatever its order. */
        bool copy = d->reorders || (d->primitive && i == BACKWARD_WEIGHTS);
        size_t need = dp_align64(d->scratch_bytes) + (copy ? dp_align64(d->weights_bytes) : 0);
        most = need > most ? need : most;
    }
    return most;
}

static dp_status build(dp_dnnl_conv *conv, bool reference, bool *offered, dp_error *err)
{
    const dp_dnnl_conv_config *c = &conv->config;
    bool wanted[DIRECTIONS] = {c->forward, c->backward_data, c->backward_weights};
    DP_TRY(describe_tensors(conv, err));
    *offered = false;
    for (int i = 0; i < DIRECTIONS; i++) {
        bool good = true;
        if (wanted[i])
            DP_TRY(choose(conv, i, &good, err));
        if (!good && !(reference && conv->directions[i].desc))
            return DP_OK;
    }
    for (int i = 0; i < DIRECTIONS; i++)
        if (wanted[i])
            DP_TRY(finish_direction(conv, i, err));
    DP_TRY(plan_weights(conv, err));
    *offered = true;
    return DP_OK;
}

/* oneDNN 2.6 writes behind its scratch memory where it gathers the strided positions of a 1x1 convolution
 * whose channels lie last and do not fill its blocks: the weight gradient is wrong and the heap is damaged.
 */
static bool unsound(const dp_dnnl_conv_config *c)
{
    const dp_conv_shape *s = &c->shape;
    return c->backward_weights && c->in_tag == DP_CPU_NHWC && s->kernel[0] == 1 && s->kernel[1] == 1 &&
           (s->stride[0] > 1 || s->stride[1] > 1) && s->in_channels % 16 != 0;
}

dp_status dp_dnnl_conv_create(dp_dnnl *dnnl, const dp_dnnl_conv_config *config, bool reference,
                              dp_dnnl_conv **out, dp_error *err)
{
    *out = NULL;
    if (unsound(config))
        return DP_OK;
    dp_dnnl_conv *conv;
    DP_TRY(dp_calloc(1, sizeof *conv, "a convolution", &conv, err));
    conv->dnnl = dnnl;
    conv->config = *config;
    bool offered;
    dp_status status = build(conv, reference, &offered, err);
    if (status != DP_OK || !offered) {
        dp_dnnl_conv_destroy(conv);
        return status;
    }
    *out = conv;
    return DP_OK;
}

bool dp_dnnl_conv_is_winograd(const dp_dnnl_conv *conv)
{
    for (int i = 0; i < DIRECTIONS; i++)
        if (conv->directions[i].desc && !strstr(implementation(conv->directions[i].desc), "wino"))
            return false;
    return true;
}

static void destroy_reordering(reordering *r)
{
    if (r->primitive)
        dnnl_primitive_destroy(r->primitive);
    if (r->from)
        dnnl_memory_destroy(r->from);
    if (r->to)
        dnnl_memory_destroy(r->to);
}

void dp_dnnl_conv_destroy(dp_dnnl_conv *conv)
{
    if (!conv)
        return;
    for (int i = 0; i < DIRECTIONS; i++) {
        direction *d = &conv->directions[i];
        for (int t = 0; t < TENSORS; t++)
            if (d->tensor[t])
                dnnl_memory_destroy(d->tensor[t]);
        if (d->primitive)
            dnnl_primitive_destroy(d->primitive);
        if (d->desc)
            dnnl_primitive_desc_destroy(d->desc);
        destroy_reordering(&d->reordering);
    }
    destroy_reordering(&conv->sum);
    dp_free(conv);
}

/* oneDNN's handles are not const; inputs are not written but for padding, which is zero already. */
static dp_status point(dnnl_memory_t memory, const void *data, dp_error *err)
{
    DNNL_TRY(dnnl_memory_set_data_handle(memory, (void *)data), "pointing at a tensor");
    return DP_OK;
}

static dp_status reorder(dp_dnnl_conv *conv, reordering *r, const void *from, void *to, dp_error *err)
{
    DP_TRY(point(r->from, from, err));
    DP_TRY(point(r->to, to, err));
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, r->from}, {DNNL_ARG_TO, r->to}};
    DNNL_TRY(dnnl_primitive_execute(r->primitive, conv->dnnl->stream, 2, args), "a re-ordering");
    return DP_OK;
}

/* The pointers of one call, in the order of `tensor`. */
static dp_status execute(dp_dnnl_conv *conv, int which, const void *const data[TENSORS], dp_error *err)
{
    static const int names[DIRECTIONS][TENSORS] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, 0, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD},
    };
    direction *d = &conv->directions[which];
    dnnl_exec_arg_t args[TENSORS];
    int count = 0;
    for (int t = 0; t < TENSORS; t++) {
        if (!d->tensor[t])
            continue;
        DP_TRY(point(d->tensor[t], data[t], err));
        args[count++] = (dnnl_exec_arg_t){names[which][t], d->tensor[t]};
    }
    DNNL_TRY(dnnl_primitive_execute(d->primitive, conv->dnnl->stream, count, args), "a convolution");
    return DP_OK;
}

/* The weights in the order of a direction: as they are, or copied behind its scratch memory. */
static dp_status order_weights(dp_dnnl_conv *conv, int which, const float *weights, void *scratch,
                               const void **out, dp_error *err)
{
    direction *d = &conv->directions[which];
    *out = weights;
    if (!d->reorders)
        return DP_OK;
    void *copy = (char *)scratch + dp_align64(d->scratch_bytes);
    *out = copy;
    return reorder(conv, &d->reordering, weights, copy, err);
}

dp_status dp_dnnl_conv_forward(dp_dnnl_conv *conv, const void *in, const float *weights, const float *bias,
                               void *out, void *scratch, dp_error *err)
{
    const void *ordered;
    DP_TRY(order_weights(conv, FORWARD, weights, scratch, &ordered, err));
    return execute(conv, FORWARD, (const void *[TENSORS]){in, ordered, bias, out, scratch}, err);
}

dp_status dp_dnnl_conv_backward_data(dp_dnnl_conv *conv, const void *out_gradient, const float *weights,
                                     void *in_gradient, void *scratch, dp_error *err)
{
    const void *ordered;
    DP_TRY(order_weights(conv, BACKWARD_DATA, weights, scratch, &ordered, err));
    return execute(conv, BACKWARD_DATA,
                   (const void *[TENSORS]){in_gradient, ordered, NULL, out_gradient, scratch}, err);
}

dp_status dp_dnnl_conv_backward_weights(dp_dnnl_conv *conv, const void *in, const void *out_gradient,
                                        float *weights_gradient, bool accumulate, float *bias_gradient,
                                        void *scratch, dp_error *err)
{
    direction *d = &conv->directions[BACKWARD_WEIGHTS];
    void *copy = (char *)scratch + dp_align64(d->scratch_bytes);
    void *target = d->reorders || accumulate || !weights_gradient ? copy : (void *)weights_gradient;
    DP_TRY(execute(conv, BACKWARD_WEIGHTS,
                   (const void *[TENSORS]){in, target, bias_gradient, out_gradient, scratch}, err));
    if (target == weights_gradient || !weights_gradient)
        return DP_OK;
    if (d->reorders)
        return reorder(conv, accumulate ? &conv->sum : &d->reordering, copy, weights_gradient, err);
    dp_cpu_store((int64_t)(d->weights_bytes / sizeof(float)), copy, weights_gradient, true);
    return DP_OK;
}
