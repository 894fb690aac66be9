/* Adaptive average pooling.
 *
 * Window i of n over a size s goes from floor(i s / n) up to ceil((i + 1) s / n), so input j is in the
 * windows from floor(j n / s) up to ceil((j + 1) n / s): the same formula with the sizes exchanged. Both
 * directions therefore gather, and write each of their results once; but rows of plain maps, which have no
 * channels to gather together, take their windows' shares one behind the other. */
#include <string.h>

#include "base/memory.h"
#include "cpu/clones.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

/* A range of rows or columns; scale: 1 / its length. */
typedef struct span {
    int64_t begin, end;
    float scale;
} span;

typedef struct average_op {
    dp_cpu_op common;
    dp_cpu_grouped in, out;
    bool identity;
    /* The windows of output rows and columns, and which windows each input row and column is in. */
    span *rows, *columns, *in_rows, *in_columns;
    span spans[];
} average_op;

typedef struct average_pass {
    const average_op *op;
    const float *source;
    float *target;
} average_pass;

/* 8 neighbouring channels, at any float's address. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));

/* ---- forward ---- */

/* y = scale * the sum of a window, for 8 channels. */
DP_INLINE void average_eight(const float *x, span row, span column, int64_t width, int64_t inner, float scale,
                             float *y)
{
    lanes total = {0};
    for (int64_t i = row.begin; i < row.end; i++) {
        lanes sum = {0};
        for (int64_t j = column.begin; j < column.end; j++)
            sum += *(const lanes *)(x + (i * width + j) * inner);
        total += sum;
    }
    *(lanes *)y = scale * total;
}

/* The sum for one channel. Long plain rows are summed in eight interleaved parts. */
DP_INLINE float sum_one(const float *x, span row, span column, int64_t width, int64_t inner)
{
    float total = 0;
    for (int64_t i = row.begin; i < row.end; i++) {
        const float *from = x + i * width * inner;
        int64_t j = column.begin;
        float sum = 0;
        if (inner == 1 && column.end - j >= 16) {
            lanes part = {0};
            for (; j + 8 <= column.end; j += 8)
                part += *(const lanes *)(from + j);
            for (int k = 0; k < 8; k++)
                sum += part[k];
        }
        for (; j < column.end; j++)
            sum += from[j * inner];
        total += sum;
    }
    return total;
}

DP_CLONES static void forward_range(const void *context, int64_t begin, int64_t end)
{
    const average_pass *v = context;
    const average_op *a = v->op;
    int64_t width = a->in.width, inner = a->in.inner;
    float *y = v->target + begin * a->out.height * a->out.width * inner;
    for (int64_t g = begin; g < end; g++) {
        const float *x = v->source + g * a->in.height * width * inner;
        for (int64_t i = 0; i < a->out.height; i++) {
            for (int64_t j = 0; j < a->out.width; j++, y += inner) {
                span row = a->rows[i], column = a->columns[j];
                float scale = row.scale * column.scale;
                int64_t c = 0;
                for (; c + 8 <= inner; c += 8)
                    average_eight(x + c, row, column, width, inner, scale, y + c);
                for (; c < inner; c++)
                    y[c] = scale * sum_one(x + c, row, column, width, inner);
            }
        }
    }
}

/* ---- backward ---- */

/* The gradient of one pixel: of the windows that it is in, each weighted by what it counts there. A macro,
 * for it is written for vectors and for floats. */
#define GATHER(type, a, dy, row, column, dx)                                                \
    do {                                                                                    \
        type sum = {0};                                                                     \
        for (int64_t i_ = (row).begin; i_ < (row).end; i_++)                                \
            for (int64_t j_ = (column).begin; j_ < (column).end; j_++)                      \
                sum += (a)->rows[i_].scale * (a)->columns[j_].scale *                       \
                       *(const type *)((dy) + (i_ * (a)->out.width + j_) * (a)->out.inner); \
        *(type *)(dx) = sum;                                                                \
    } while (0)

/* One row of a plain map's gradient: each window in turn gives its pixels their shares. */
DP_INLINE void spread_row(const average_op *a, const float *dy, span row, float *restrict dx)
{
    memset(dx, 0, (size_t)a->in.width * sizeof *dx);
    for (int64_t i = row.begin; i < row.end; i++) {
        for (int64_t j = 0; j < a->out.width; j++) {
            span column = a->columns[j];
            float share = a->rows[i].scale * column.scale * dy[i * a->out.width + j];
            for (int64_t x = column.begin; x < column.end; x++)
                dx[x] += share;
        }
    }
}

DP_CLONES static void backward_range(const void *context, int64_t begin, int64_t end)
{
    const average_pass *v = context;
    const average_op *a = v->op;
    int64_t inner = a->in.inner;
    float *dx = v->target + begin * a->in.height * a->in.width * inner;
    for (int64_t g = begin; g < end; g++) {
        const float *dy = v->source + g * a->out.height * a->out.width * inner;
        for (int64_t i = 0; i < a->in.height; i++) {
            span row = a->in_rows[i];
            if (inner == 1) {
                spread_row(a, dy, row, dx);
                dx += a->in.width;
                continue;
            }
            for (int64_t j = 0; j < a->in.width; j++, dx += inner) {
                span column = a->in_columns[j];
                int64_t c = 0;
                for (; c + 8 <= inner; c += 8)
                    GATHER(lanes, a, dy + c, row, column, dx + c);
                for (; c < inner; c++)
                    GATHER(float, a, dy + c, row, column, dx + c);
            }
        }
    }
}

/* ---- the operation ---- */

static dp_status average_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    average_op *a = op->state;
    average_pass v = {a, args->in[0], args->out};
    if (a->identity)
        memcpy(v.target, v.source, op->out.bytes);
    else
        dp_cpu_for(a->common.device->threads, a->in.groups, 1, forward_range, &v);
    return DP_OK;
}

static dp_status average_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    average_op *a = op->state;
    average_pass v = {a, args->out_gradient, args->in_gradient[0]};
    if (v.target && a->identity)
        memcpy(v.target, v.source, op->out.bytes);
    else if (v.target)
        dp_cpu_for(a->common.device->threads, a->in.groups, 1, backward_range, &v);
    return DP_OK;
}

static span *fill_spans(span *spans, int64_t count, int64_t size)
{
    for (int64_t i = 0; i < count; i++) {
        spans[i] = (span){.begin = i * size / count, .end = ((i + 1) * size + count - 1) / count};
        spans[i].scale = 1 / (float)(spans[i].end - spans[i].begin);
    }
    return spans + count;
}

dp_status dp_cpu_average_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                dp_error *err)
{
    (void)device;
    dp_cpu_grouped in = dp_cpu_group(&request->desc->in[0], request->in[0].tag);
    dp_cpu_grouped to = dp_cpu_group(&request->desc->out, request->in[0].tag);
    size_t spans = (size_t)(in.height + in.width + to.height + to.width);
    average_op *a;
    DP_TRY(dp_calloc(1, sizeof *a + spans * sizeof *a->spans, "an average pooling operation", &a, err));
    a->common =
        (dp_cpu_op){.forward = average_forward, .backward = average_backward, .destroy = dp_cpu_op_free};
    a->in = in;
    a->out = to;
    a->identity = in.height == to.height && in.width == to.width;
    a->rows = a->spans;
    a->columns = fill_spans(a->rows, to.height, in.height);
    a->in_rows = fill_spans(a->columns, to.width, in.width);
    a->in_columns = fill_spans(a->in_rows, in.height, to.height);
    fill_spans(a->in_columns, in.width, to.width);
    out->out = dp_cpu_layout(&request->desc->out, request->in[0].tag);
    out->state = a;
    return DP_OK;
}
