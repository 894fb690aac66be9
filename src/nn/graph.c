/* The builder functions of dptrain/model.h. */
#include "nn/graph.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

enum { FAILED = -1, MAX_ELEMENTS_LOG2 = 40 };

dp_status dp_model_create(const char *name, dp_model **out, dp_error *err)
{
    DP_TRY(dp_calloc(1, sizeof **out, "a model", out, err));
    (*out)->input = (*out)->output = FAILED;
    (*out)->device = -1;
    dp_status status = dp_strdup(name, &(*out)->name, err);
    if (status != DP_OK) {
        dp_free(*out);
        *out = NULL;
    }
    return status;
}

void dp_model_free(dp_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < model->param_count; i++)
        dp_free(model->params[i].name);
    for (int i = 0; i < model->buffer_count; i++)
        dp_free(model->buffers[i].name);
    dp_free(model->params);
    dp_free(model->buffers);
    dp_free(model->nodes);
    dp_free(model->program);
    dp_free(model->values);
    dp_free(model->description);
    dp_free(model->name);
    dp_free(model);
}

/* The first failure is kept; later builder calls see it and return at once. */
__attribute__((format(printf, 3, 4))) static dp_value fail(dp_model *m, dp_status status, const char *format,
                                                           ...)
{
    if (m->failure.status == DP_OK) {
        va_list args;
        va_start(args, format);
        vsnprintf(m->failure.message, sizeof m->failure.message, format, args);
        va_end(args);
        m->failure.status = status;
    }
    return FAILED;
}

static bool usable(dp_model *m, dp_value x)
{
    if (m->failure.status != DP_OK)
        return false;
    if (m->finished)
        fail(m, DP_ERROR_USAGE, "model '%s' is finished: nothing can be added", m->name);
    else if (x < 0 || x >= m->value_count)
        fail(m, DP_ERROR_USAGE, "model '%s': %d is not a value of this model", m->name, x);
    return m->failure.status == DP_OK;
}

static dp_value add_value(dp_model *m, int rank, const int64_t *shape, int producer)
{
    int64_t elements = 1;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 1 || elements > ((int64_t)1 << MAX_ELEMENTS_LOG2) / shape[i])
            return fail(m, DP_ERROR_USAGE, "model '%s': a dimension of %lld makes no tensor", m->name,
                        (long long)shape[i]);
        elements *= shape[i];
    }
    dp_status status =
        dp_realloc(&m->values, (size_t)m->value_count + 1, sizeof *m->values, "a model", &m->failure);
    if (status != DP_OK)
        return FAILED;
    dp_graph_value *v = &m->values[m->value_count];
    *v = (dp_graph_value){.rank = rank, .producer = producer};
    memcpy(v->shape, shape, (size_t)rank * sizeof *shape);
    return m->value_count++;
}

static dp_value add_node(dp_model *m, dp_node node, int rank, const int64_t *shape)
{
    node.output = add_value(m, rank, shape, m->node_count);
    if (node.output < 0)
        return FAILED;
    if (dp_realloc(&m->nodes, (size_t)m->node_count + 1, sizeof *m->nodes, "a model", &m->failure) != DP_OK)
        return FAILED;
    m->nodes[m->node_count++] = node;
    return node.output;
}

/* "layer.leaf", or "leaf" for a layer without a name; false after a failure. Names of parameters and buffers
 * are distinct. */
static bool full_name(dp_model *m, const char *layer, const char *leaf, char **out)
{
    char full[256];
    int length = snprintf(full, sizeof full, "%s%s%s", layer, *layer ? "." : "", leaf);
    if (length < 0 || (size_t)length >= sizeof full) {
        fail(m, DP_ERROR_USAGE, "model '%s': the layer name '%.40s...' is too long", m->name, layer);
        return false;
    }
    bool taken = false;
    for (int i = 0; i < m->param_count; i++)
        taken |= strcmp(m->params[i].name, full) == 0;
    for (int i = 0; i < m->buffer_count; i++)
        taken |= strcmp(m->buffers[i].name, full) == 0;
    if (taken) {
        fail(m, DP_ERROR_USAGE, "model '%s': two parameters are named '%s'", m->name, full);
        return false;
    }
    return dp_strdup(full, out, &m->failure) == DP_OK;
}

static int add_param(dp_model *m, const char *layer, const char *leaf, int rank, const int64_t *shape,
                     dp_fill fill, double scale)
{
    if (dp_realloc(&m->params, (size_t)m->param_count + 1, sizeof *m->params, "a model", &m->failure) !=
        DP_OK)
        return FAILED;
    dp_param *p = &m->params[m->param_count];
    memset(p, 0, sizeof *p);
    if (!full_name(m, layer, leaf, &p->name))
        return FAILED;
    p->fill = fill;
    p->scale = (float)scale;
    p->info = (dp_param_info){.name = p->name, .rank = rank, .elements = 1, .offset = m->elements};
    for (int i = 0; i < rank; i++) {
        p->info.shape[i] = shape[i];
        if (p->info.elements > ((int64_t)1 << MAX_ELEMENTS_LOG2) / shape[i]) {
            fail(m, DP_ERROR_USAGE, "model '%s': parameter '%s' would be too large", m->name, p->name);
            dp_free(p->name);
            return FAILED;
        }
        p->info.elements *= shape[i];
    }
    m->elements += p->info.elements;
    return m->param_count++;
}

static int add_buffer(dp_model *m, const char *layer, const char *leaf, bool counter, int64_t elements,
                      float initial)
{
    if (dp_realloc(&m->buffers, (size_t)m->buffer_count + 1, sizeof *m->buffers, "a model", &m->failure) !=
        DP_OK)
        return FAILED;
    dp_model_buffer_entry *b = &m->buffers[m->buffer_count];
    memset(b, 0, sizeof *b);
    if (!full_name(m, layer, leaf, &b->name))
        return FAILED;
    int64_t *end = counter ? &m->counters : &m->buffer_elements;
    b->initial = initial;
    b->info = (dp_buffer_info){.name = b->name, .counter = counter, .elements = elements, .offset = *end};
    *end += elements;
    return m->buffer_count++;
}

/* Weight and, if wanted, bias, filled as the model's scheme says. fan_in, fan_out: inputs of one output,
 * outputs of one input, as PyTorch counts them. */
static bool add_weight(dp_model *m, dp_node *node, const char *name, int rank, const int64_t *shape,
                       bool bias, int64_t bias_size, double fan_in, double fan_out)
{
    double bound = 1 / sqrt(fan_in);
    bool uniform = m->init == DP_INIT_DEFAULT;
    double scale = uniform ? bound : m->init == DP_INIT_KAIMING_NORMAL ? sqrt(2 / fan_out) : 0.01;
    node->params = bias ? 2 : 1;
    node->param[0] =
        add_param(m, name, "weight", rank, shape, uniform ? DP_FILL_UNIFORM : DP_FILL_NORMAL, scale);
    if (node->param[0] < 0 || !bias)
        return node->param[0] >= 0;
    node->param[1] = add_param(m, name, "bias", 1, &bias_size, uniform ? DP_FILL_UNIFORM : DP_FILL_CONSTANT,
                               uniform ? bound : 0);
    return node->param[1] >= 0;
}

void dp_model_use_init(dp_model *model, dp_init init)
{
    model->init = init;
}

dp_value dp_model_input(dp_model *model, int rank, const int64_t *shape)
{
    if (model->failure.status != DP_OK)
        return FAILED;
    if (model->input >= 0)
        return fail(model, DP_ERROR_USAGE, "model '%s' has an input already", model->name);
    if (rank != 1 && rank != 3)
        return fail(model, DP_ERROR_USAGE,
                    "model '%s': an input has 1 dimension (features) or 3 (channels, height, width), not %d",
                    model->name, rank);
    model->input = add_value(model, rank, shape, -1);
    return model->input;
}

dp_value dp_linear(dp_model *model, const char *name, dp_value x, int64_t out_features)
{
    if (!usable(model, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    if (in.rank != 1)
        return fail(model, DP_ERROR_USAGE, "layer '%s' takes flat samples: put dp_flatten before it", name);
    if (out_features < 1)
        return fail(model, DP_ERROR_USAGE, "layer '%s' cannot have %lld outputs", name,
                    (long long)out_features);
    dp_node node = {.kind = DP_OP_LINEAR, .inputs = 1, .input = {x}};
    if (!add_weight(model, &node, name, 2, (int64_t[]){out_features, in.shape[0]}, true, out_features,
                    (double)in.shape[0], (double)out_features))
        return FAILED;
    return add_node(model, node, 1, &out_features);
}

static bool images(dp_model *m, const char *what, dp_value x)
{
    if (m->values[x].rank != 3)
        fail(m, DP_ERROR_USAGE, "%s takes images [channels, height, width], not flat samples", what);
    return m->values[x].rank == 3;
}

/* Output size of a window that slides over `size` elements; 0 or less where it does not fit. */
static int64_t slide(int64_t size, int kernel, int stride, int padding)
{
    int64_t room = size + 2 * (int64_t)padding - kernel;
    return room < 0 ? 0 : room / stride + 1;
}

static bool window_fits(dp_model *m, const char *what, const dp_graph_value *in, int kernel, int stride,
                        int padding, int64_t out[3])
{
    if (in->rank != 3)
        fail(m, DP_ERROR_USAGE, "%s takes images [channels, height, width], not flat samples", what);
    else if (kernel < 1 || stride < 1 || padding < 0 || padding >= kernel)
        fail(m, DP_ERROR_USAGE, "%s: kernel %d, stride %d and padding %d make no window", what, kernel,
             stride, padding);
    else {
        out[1] = slide(in->shape[1], kernel, stride, padding);
        out[2] = slide(in->shape[2], kernel, stride, padding);
        if (out[1] >= 1 && out[2] >= 1)
            return true;
        fail(m, DP_ERROR_USAGE, "%s: images of %lldx%lld are too small for a window of %dx%d", what,
             (long long)in->shape[1], (long long)in->shape[2], kernel, kernel);
    }
    return false;
}

static bool channels_fit(dp_model *m, const char *name, int64_t channels)
{
    if (channels < 1)
        fail(m, DP_ERROR_USAGE, "layer '%s' cannot have %lld channels", name, (long long)channels);
    return channels >= 1;
}

static dp_value conv2d(dp_model *m, const char *name, dp_value x, int64_t channels, int kernel, int stride,
                       int padding, bool bias)
{
    if (!usable(m, x))
        return FAILED;
    const dp_graph_value in = m->values[x];
    int64_t out[3] = {channels};
    if (!window_fits(m, name, &in, kernel, stride, padding, out) || !channels_fit(m, name, channels))
        return FAILED;
    dp_node node = {.kind = DP_OP_CONV2D,
                    .inputs = 1,
                    .input = {x},
                    .kernel = kernel,
                    .stride = stride,
                    .padding = padding};
    double window = (double)kernel * kernel;
    if (!add_weight(m, &node, name, 4, (int64_t[]){channels, in.shape[0], kernel, kernel}, bias, channels,
                    (double)in.shape[0] * window, (double)channels * window))
        return FAILED;
    return add_node(m, node, 3, out);
}

dp_value dp_conv2d(dp_model *model, const char *name, dp_value x, int64_t out_channels, int kernel,
                   int stride, int padding)
{
    return conv2d(model, name, x, out_channels, kernel, stride, padding, true);
}

dp_value dp_conv2d_no_bias(dp_model *model, const char *name, dp_value x, int64_t out_channels, int kernel,
                           int stride, int padding)
{
    return conv2d(model, name, x, out_channels, kernel, stride, padding, false);
}

dp_value dp_conv_transpose2d(dp_model *model, const char *name, dp_value x, int64_t out_channels, int kernel,
                             int stride, int padding)
{
    if (!usable(model, x) || !images(model, name, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    if (kernel < 1 || stride < 1 || padding < 0 || padding >= kernel)
        return fail(model, DP_ERROR_USAGE, "%s: kernel %d, stride %d and padding %d make no window", name,
                    kernel, stride, padding);
    if (!channels_fit(model, name, out_channels))
        return FAILED;
    int64_t out[3] = {out_channels};
    for (int i = 1; i < 3; i++)
        out[i] = (in.shape[i] - 1) * stride - 2 * (int64_t)padding + kernel;
    dp_node node = {.kind = DP_OP_CONV_TRANSPOSE2D,
                    .inputs = 1,
                    .input = {x},
                    .kernel = kernel,
                    .stride = stride,
                    .padding = padding};
    double window = (double)kernel * kernel;
    /* PyTorch reads both fans off the weight's shape, [in, out, K, K], as if it were a convolution's. */
    if (!add_weight(model, &node, name, 4, (int64_t[]){in.shape[0], out_channels, kernel, kernel}, true,
                    out_channels, (double)out_channels * window, (double)in.shape[0] * window))
        return FAILED;
    return add_node(model, node, 3, out);
}

dp_value dp_batch_norm2d(dp_model *model, const char *name, dp_value x)
{
    if (!usable(model, x) || !images(model, name, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    int64_t channels = in.shape[0];
    dp_node node = {
        .kind = DP_OP_BATCH_NORM2D, .inputs = 1, .input = {x}, .params = 2, .buffers = DP_OP_MAX_BUFFERS};
    if ((node.param[0] = add_param(model, name, "weight", 1, &channels, DP_FILL_CONSTANT, 1)) < 0 ||
        (node.param[1] = add_param(model, name, "bias", 1, &channels, DP_FILL_CONSTANT, 0)) < 0 ||
        (node.buffer[0] = add_buffer(model, name, "running_mean", false, channels, 0)) < 0 ||
        (node.buffer[1] = add_buffer(model, name, "running_var", false, channels, 1)) < 0 ||
        add_buffer(model, name, "num_batches_tracked", true, 1, 0) < 0)
        return FAILED;
    return add_node(model, node, in.rank, in.shape);
}

/* Both of an operation on two values; what: for messages. */
static bool usable_pair(dp_model *m, const char *what, dp_value a, dp_value b, int first_equal)
{
    if (!usable(m, a) || !usable(m, b))
        return false;
    const dp_graph_value *x = &m->values[a], *y = &m->values[b];
    bool fit = a != b && x->rank == y->rank;
    for (int i = first_equal; fit && i < x->rank; i++)
        fit = x->shape[i] == y->shape[i];
    if (!fit)
        fail(m, DP_ERROR_USAGE, "%s takes two different values of %s", what,
             first_equal ? "equal height and width" : "one shape");
    return fit;
}

dp_value dp_add(dp_model *model, dp_value a, dp_value b)
{
    if (!usable_pair(model, "add", a, b, 0))
        return FAILED;
    const dp_graph_value in = model->values[a];
    return add_node(model, (dp_node){.kind = DP_OP_ADD, .inputs = 2, .input = {a, b}}, in.rank, in.shape);
}

dp_value dp_concat(dp_model *model, dp_value a, dp_value b)
{
    if (!usable_pair(model, "concat", a, b, 1) || !images(model, "concat", a))
        return FAILED;
    const int64_t *x = model->values[a].shape, *y = model->values[b].shape;
    const int64_t out[3] = {x[0] + y[0], x[1], x[2]};
    return add_node(model, (dp_node){.kind = DP_OP_CONCAT, .inputs = 2, .input = {a, b}}, 3, out);
}

dp_value dp_adaptive_avg_pool2d(dp_model *model, dp_value x, int64_t height, int64_t width)
{
    if (!usable(model, x) || !images(model, "adaptive_avg_pool2d", x))
        return FAILED;
    const int64_t out[3] = {model->values[x].shape[0], height, width};
    if (height < 1 || width < 1)
        return fail(model, DP_ERROR_USAGE, "adaptive_avg_pool2d cannot make images of %lldx%lld",
                    (long long)height, (long long)width);
    return add_node(model, (dp_node){.kind = DP_OP_ADAPTIVE_AVG_POOL2D, .inputs = 1, .input = {x}}, 3, out);
}

dp_value dp_upsample2x(dp_model *model, dp_value x)
{
    if (!usable(model, x) || !images(model, "upsample2x", x))
        return FAILED;
    const int64_t *in = model->values[x].shape;
    const int64_t out[3] = {in[0], 2 * in[1], 2 * in[2]};
    return add_node(model, (dp_node){.kind = DP_OP_UPSAMPLE2X, .inputs = 1, .input = {x}}, 3, out);
}

static dp_value dropout(dp_model *m, dp_op_kind kind, dp_value x, double p)
{
    if (!usable(m, x) || (kind == DP_OP_DROPOUT2D && !images(m, "dropout2d", x)))
        return FAILED;
    if (!(p >= 0 && p < 1))
        return fail(m, DP_ERROR_USAGE, "a dropout of %g is not in [0, 1)", p);
    if (p == 0)
        return x;
    const dp_graph_value in = m->values[x];
    dp_node node = {.kind = kind, .inputs = 1, .input = {x}, .probability = p, .layer = m->dropouts++};
    return add_node(m, node, in.rank, in.shape);
}

dp_value dp_dropout(dp_model *model, dp_value x, double p)
{
    return dropout(model, DP_OP_DROPOUT, x, p);
}

dp_value dp_dropout2d(dp_model *model, dp_value x, double p)
{
    return dropout(model, DP_OP_DROPOUT2D, x, p);
}

dp_value dp_relu(dp_model *model, dp_value x)
{
    if (!usable(model, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    return add_node(model, (dp_node){.kind = DP_OP_RELU, .inputs = 1, .input = {x}}, in.rank, in.shape);
}

dp_value dp_max_pool2d(dp_model *model, dp_value x, int kernel, int stride, int padding)
{
    if (!usable(model, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    int64_t out[3] = {in.shape[0]};
    if (!window_fits(model, "max_pool2d", &in, kernel, stride, padding, out))
        return FAILED;
    if (padding > kernel / 2)
        return fail(model, DP_ERROR_USAGE, "max_pool2d: padding %d is more than half of the window of %d",
                    padding, kernel);
    dp_node node = {.kind = DP_OP_MAX_POOL2D,
                    .inputs = 1,
                    .input = {x},
                    .kernel = kernel,
                    .stride = stride,
                    .padding = padding};
    return add_node(model, node, 3, out);
}

dp_value dp_flatten(dp_model *model, dp_value x)
{
    if (!usable(model, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    if (in.rank == 1)
        return x;
    int64_t features = in.shape[0] * in.shape[1] * in.shape[2];
    return add_node(model, (dp_node){.kind = DP_OP_FLATTEN, .inputs = 1, .input = {x}}, 1, &features);
}

dp_status dp_model_finish(dp_model *model, dp_value output, dp_error *err)
{
    if (model->failure.status != DP_OK)
        return dp_fail(err, model->failure.status, "%s", model->failure.message);
    if (model->finished || output < 0 || output >= model->value_count || output == model->input)
        return dp_fail(err, DP_ERROR_USAGE, "model '%s': %s", model->name,
                       model->finished ? "finished twice" : "the output must be made by a layer");
    model->output = output;
    DP_TRY(dp_model_make_program(model, err));
    model->finished = true;
    return DP_OK;
}

dp_status dp_model_set_description(dp_model *model, const char *json, dp_error *err)
{
    dp_free(model->description);
    model->description = NULL;
    return dp_strdup(json, &model->description, err);
}
