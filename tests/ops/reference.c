#include "reference.h"

#include <math.h>
#include <stdlib.h>

static int64_t input_at(const dp_op_desc *d, int64_t n, int64_t c, int64_t row, int64_t column)
{
    const int64_t *in = d->in[0].dim;
    return ((n * in[1] + c) * in[2] + row) * in[3] + column;
}

/* Position of tap (i, j) of output (y, x) in the input, or false in the padding. */
static bool tap(const dp_op_desc *d, int64_t y, int64_t x, int64_t i, int64_t j, int64_t *row,
                int64_t *column)
{
    *row = y * d->stride[0] - d->padding[0] + i;
    *column = x * d->stride[1] - d->padding[1] + j;
    return *row >= 0 && *row < d->in[0].dim[2] && *column >= 0 && *column < d->in[0].dim[3];
}

static void linear_forward(const dp_op_desc *d, const double *in, const double *w, const double *b,
                           double *out)
{
    int64_t n = d->in[0].dim[0], width = d->in[0].dim[1], outs = d->out.dim[1];
    for (int64_t i = 0; i < n; i++) {
        for (int64_t o = 0; o < outs; o++) {
            double s = b ? b[o] : 0;
            for (int64_t k = 0; k < width; k++)
                s += in[i * width + k] * w[o * width + k];
            out[i * outs + o] = s;
        }
    }
}

static void linear_backward(const dp_op_desc *d, const double *in, const double *w, const double *g,
                            double *in_gradient, double *dw, double *db)
{
    int64_t n = d->in[0].dim[0], width = d->in[0].dim[1], outs = d->out.dim[1];
    for (int64_t i = 0; i < n; i++) {
        for (int64_t o = 0; o < outs; o++) {
            double v = g[i * outs + o];
            if (db)
                db[o] += v;
            for (int64_t k = 0; k < width; k++) {
                in_gradient[i * width + k] += v * w[o * width + k];
                if (dw)
                    dw[o * width + k] += v * in[i * width + k];
            }
        }
    }
}

/* Calls visit for every (output, input, weight) triple of a convolution. */
typedef void conv_visit(void *context, int64_t out, int64_t in, int64_t weight);

static void conv_walk(const dp_op_desc *d, conv_visit *visit, void *context)
{
    const int64_t *in = d->in[0].dim, *out = d->out.dim;
    int64_t at = 0;
    for (int64_t n = 0; n < out[0]; n++)
        for (int64_t o = 0; o < out[1]; o++)
            for (int64_t y = 0; y < out[2]; y++)
                for (int64_t x = 0; x < out[3]; x++, at++)
                    for (int64_t c = 0; c < in[1]; c++)
                        for (int64_t i = 0; i < d->kernel[0]; i++)
                            for (int64_t j = 0; j < d->kernel[1]; j++) {
                                int64_t row, column;
                                if (tap(d, y, x, i, j, &row, &column))
                                    visit(context, at, input_at(d, n, c, row, column),
                                          ((o * in[1] + c) * d->kernel[0] + i) * d->kernel[1] + j);
                            }
}

typedef struct conv_data {
    const double *in, *weight, *out_gradient;
    double *out, *in_gradient, *weight_gradient;
} conv_data;

static void visit_forward(void *context, int64_t out, int64_t in, int64_t weight)
{
    conv_data *v = context;
    v->out[out] += v->in[in] * v->weight[weight];
}

static void visit_backward(void *context, int64_t out, int64_t in, int64_t weight)
{
    conv_data *v = context;
    v->in_gradient[in] += v->out_gradient[out] * v->weight[weight];
    if (v->weight_gradient)
        v->weight_gradient[weight] += v->out_gradient[out] * v->in[in];
}

static int64_t channel_of(const dp_op_desc *d, int64_t at)
{
    return at / (d->out.dim[2] * d->out.dim[3]) % d->out.dim[1];
}

/* The first maximum of a window. */
static int64_t pool_source(const dp_op_desc *d, const double *in, int64_t n, int64_t c, int64_t y, int64_t x)
{
    int64_t best = -1;
    for (int64_t i = 0; i < d->kernel[0]; i++)
        for (int64_t j = 0; j < d->kernel[1]; j++) {
            int64_t row, column;
            if (!tap(d, y, x, i, j, &row, &column))
                continue;
            int64_t at = input_at(d, n, c, row, column);
            if (best < 0 || in[at] > in[best])
                best = at;
        }
    return best;
}

/* Forward if in_gradient is NULL, else backward. */
static void pool(const dp_op_desc *d, const double *in, double *out, const double *g, double *in_gradient)
{
    int64_t at = 0;
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int64_t c = 0; c < d->out.dim[1]; c++)
            for (int64_t y = 0; y < d->out.dim[2]; y++)
                for (int64_t x = 0; x < d->out.dim[3]; x++, at++) {
                    int64_t source = pool_source(d, in, n, c, y, x);
                    if (in_gradient)
                        in_gradient[source] += g[at];
                    else
                        out[at] = in[source];
                }
}

/* Mean and biased variance of a channel: the chunk's own in training, else the running ones. */
static void moments(const dp_op_desc *d, const reference_tensors *t, int64_t channel, double *mean,
                    double *variance)
{
    double sum = 0, square = 0, n = 0;
    if (!t->training) {
        *mean = t->buffer[0][channel];
        *variance = t->buffer[1][channel];
        return;
    }
    for (int64_t i = 0; i < dp_shape_elements(&d->out); i++)
        if (channel_of(d, i) == channel)
            sum += t->in[0][i], n++;
    *mean = sum / n;
    for (int64_t i = 0; i < dp_shape_elements(&d->out); i++)
        if (channel_of(d, i) == channel)
            square += (t->in[0][i] - *mean) * (t->in[0][i] - *mean);
    *variance = square / n;
}

static void norm_forward(const dp_op_desc *d, const reference_tensors *t)
{
    double n = (double)(dp_shape_elements(&d->out) / d->out.dim[1]);
    for (int64_t c = 0; c < d->out.dim[1]; c++) {
        double mean, variance;
        moments(d, t, c, &mean, &variance);
        for (int64_t i = 0; i < dp_shape_elements(&d->out); i++)
            if (channel_of(d, i) == c)
                t->out[i] = (t->in[0][i] - mean) / sqrt(variance + 1e-5) * t->weight[c] + t->bias[c] +
                            (d->inputs > 1 ? t->in[1][i] : 0);
        if (t->training) {
            t->buffer[0][c] = 0.9 * t->buffer[0][c] + 0.1 * mean;
            t->buffer[1][c] = 0.9 * t->buffer[1][c] + 0.1 * variance * n / (n - 1);
        }
    }
}

/* With r = 1 / sqrt(variance + epsilon), h = (x - mean) r and averages over the channel:
 * dx = weight r (g - average(g) - h average(g h)). */
static void norm_backward(const dp_op_desc *d, const reference_tensors *t, const double *g)
{
    int64_t count = dp_shape_elements(&d->out);
    double n = (double)(count / d->out.dim[1]);
    for (int64_t c = 0; c < d->out.dim[1]; c++) {
        double mean, variance, sum = 0, product = 0;
        moments(d, t, c, &mean, &variance);
        double r = 1 / sqrt(variance + 1e-5);
        for (int64_t i = 0; i < count; i++)
            if (channel_of(d, i) == c) {
                sum += g[i];
                product += g[i] * (t->in[0][i] - mean) * r;
            }
        if (t->weight_gradient)
            t->weight_gradient[c] += product;
        for (int64_t i = 0; i < count; i++)
            if (channel_of(d, i) == c)
                t->in_gradient[0][i] +=
                    t->weight[c] * r * (g[i] - sum / n - (t->in[0][i] - mean) * r * product / n);
    }
    if (d->inputs > 1)
        for (int64_t i = 0; i < count; i++)
            t->in_gradient[1][i] += g[i];
}

static void add_to(const double *from, double *to, int64_t count)
{
    for (int64_t i = 0; i < count && to; i++)
        to[i] += from[i];
}

void reference_forward(const dp_op_desc *d, const reference_tensors *t)
{
    int64_t count = dp_shape_elements(&d->out);
    double *out = t->out;
    conv_data v = {.in = t->in[0], .weight = t->weight, .out = out};
    bool four = d->out.rank == 4;
    for (int64_t i = 0; i < count; i++)
        out[i] = four && t->bias ? t->bias[channel_of(d, i)] : 0;
    switch (d->kind) {
    case DP_OP_LINEAR:
        linear_forward(d, t->in[0], t->weight, t->bias, out);
        break;
    case DP_OP_CONV2D:
        conv_walk(d, visit_forward, &v);
        break;
    case DP_OP_MAX_POOL2D:
        pool(d, t->in[0], out, NULL, NULL);
        break;
    case DP_OP_BATCH_NORM2D:
        norm_forward(d, t);
        break;
    default:
        if (!reference_maps_forward(d, t))
            for (int i = 0; i < d->inputs; i++)
                add_to(t->in[i], out, count);
    }
    for (int64_t i = 0; i < count && (d->relu || d->kind == DP_OP_RELU); i++)
        out[i] = out[i] > 0 ? out[i] : 0;
}

/* g: the gradient behind a ReLU already. */
static void backward_unmasked(const dp_op_desc *d, const reference_tensors *t, const double *g)
{
    int64_t count = dp_shape_elements(&d->out);
    conv_data v = {.in = t->in[0],
                   .weight = t->weight,
                   .out_gradient = g,
                   .in_gradient = t->in_gradient[0],
                   .weight_gradient = t->weight_gradient};
    switch (d->kind) {
    case DP_OP_LINEAR:
        linear_backward(d, t->in[0], t->weight, g, t->in_gradient[0], t->weight_gradient, t->bias_gradient);
        return;
    case DP_OP_CONV2D:
        conv_walk(d, visit_backward, &v);
        break;
    case DP_OP_MAX_POOL2D:
        pool(d, t->in[0], NULL, g, t->in_gradient[0]);
        break;
    case DP_OP_BATCH_NORM2D:
        norm_backward(d, t, g);
        break;
    default:
        if (!reference_maps_backward(d, t, g))
            for (int i = 0; i < d->inputs; i++)
                add_to(g, t->in_gradient[i], count);
    }
    for (int64_t i = 0; i < count && t->bias_gradient; i++)
        t->bias_gradient[channel_of(d, i)] += g[i];
}

void reference_backward(const dp_op_desc *d, const reference_tensors *t)
{
    int64_t count = dp_shape_elements(&d->out);
    double *masked = calloc((size_t)count, sizeof *masked);
    if (!masked)
        return; /* the comparison that follows then fails */
    bool relu = d->relu || d->kind == DP_OP_RELU;
    for (int64_t i = 0; i < count; i++)
        masked[i] = relu && t->out[i] <= 0 ? 0 : t->out_gradient[i];
    backward_unmasked(d, t, masked);
    free(masked);
}

/* ---- losses ---- */

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double term(dp_criterion criterion, double x, double t, double p, double *slope)
{
    double sigmoid = 1 / (1 + exp(-x));
    switch (criterion) {
    case DP_BCE_WITH_LOGITS: /* -(p t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))) */
        *slope = -p * t * (1 - sigmoid) + (1 - t) * sigmoid;
        return p * t * softplus(-x) + (1 - t) * softplus(x);
    case DP_MSE:
        *slope = 2 * (x - t);
        return (x - t) * (x - t);
    default:
        *slope = x > t ? 1 : x < t ? -1 : 0;
        return fabs(x - t);
    }
}

void reference_loss(dp_criterion criterion, int64_t samples, int64_t elements, const double *output,
                    const int32_t *labels, const double *targets, double pos_weight, double scale,
                    double *sample_loss, double *gradient)
{
    for (int64_t i = 0; i < samples; i++) {
        const double *x = output + i * elements;
        double *g = gradient + i * elements, top = x[0], sum = 0;
        sample_loss[i] = 0;
        if (criterion != DP_CROSS_ENTROPY) {
            for (int64_t j = 0; j < elements; j++) {
                double slope;
                sample_loss[i] += term(criterion, x[j], targets[i * elements + j], pos_weight, &slope);
                g[j] = scale * slope;
            }
            continue;
        }
        for (int64_t j = 0; j < elements; j++)
            top = x[j] > top ? x[j] : top;
        for (int64_t j = 0; j < elements; j++)
            sum += exp(x[j] - top);
        sample_loss[i] = log(sum) + top - x[labels[i]];
        for (int64_t j = 0; j < elements; j++)
            g[j] = scale * (exp(x[j] - top) / sum - (j == labels[i]));
    }
}

void reference_step(const reference_optimizer *o, int step, double g, double *w, double *m, double *v)
{
    if (o->kind == DP_SGD) {
        g += o->weight_decay * *w;
        if (o->momentum != 0) {
            *m = step == 1 ? g : o->momentum * *m + g;
            g = o->nesterov ? g + o->momentum * *m : *m;
        }
        *w -= o->lr * g;
        return;
    }
    *w -= o->lr * o->weight_decay * *w;
    *m = o->beta1 * *m + (1 - o->beta1) * g;
    *v = o->beta2 * *v + (1 - o->beta2) * g * g;
    double first = *m / (1 - pow(o->beta1, step)), second = *v / (1 - pow(o->beta2, step));
    *w -= o->lr * first / (sqrt(second) + o->eps);
}
