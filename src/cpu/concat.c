/* Concatenation along channels.
 *
 * The result lies as the first input does or, where that is plain, as the second: then at least one of them
 * is copied in whole blocks, wherever its channels start at a block's edge. Whatever the layouts, a group of
 * the result consists of runs: channels that lie together on both sides. Backward cuts the same runs out of
 * the result's gradient. */
#include <string.h>

#include "base/memory.h"
#include "cpu/clones.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

enum { TILE = 64 }; /* pixels that are copied at a time, so that the target's lines stay in the first cache */

typedef struct concat_op {
    dp_cpu_op common;
    dp_cpu_grouped in[2], out;
} concat_op;

/* Channels [first, first + channels) of a source, which the target gets one part behind the other. */
typedef struct part {
    const float *data;
    dp_cpu_grouped group;
    int64_t blocks; /* groups of one sample */
    int64_t first, channels;
} part;

typedef struct concat_pass {
    float *target;
    dp_cpu_grouped group;
    int64_t blocks; /* groups of one sample */
    int64_t pixels;
    int parts;
    part part[2];
} concat_pass;

/* Channels of a target group that lie together in a source. */
typedef struct run {
    int64_t length;
    const float *source; /* of pixel 0; NULL: padding, to be zero */
    int64_t pitch;       /* from pixel to pixel of the source */
} run;

/* The run that starts at channel c of sample n and is at most `room` long. */
DP_INLINE run run_at(const concat_pass *v, int64_t n, int64_t c, int64_t room)
{
    for (int i = 0; i < v->parts; c -= v->part[i++].channels) {
        const part *p = &v->part[i];
        if (c >= p->channels)
            continue;
        int64_t at = p->first + c, inner = p->group.inner, within = at % inner;
        int64_t length = p->channels - c < inner - within ? p->channels - c : inner - within;
        const float *map = p->data + (n * p->blocks + at / inner) * v->pixels * inner;
        return (run){length < room ? length : room, map + within, inner};
    }
    return (run){.length = room};
}

DP_INLINE void copy_run(const run *r, int64_t pixels, float *restrict to, int64_t pitch)
{
    const float *restrict from = r->source;
    if (!from) {
        for (int64_t p = 0; p < pixels; p++)
            memset(to + p * pitch, 0, (size_t)r->length * sizeof(float));
    } else if (r->length == pitch && r->pitch == pitch) {
        memcpy(to, from, (size_t)(pixels * pitch) * sizeof(float));
    } else if (r->length == 1) {
        for (int64_t p = 0; p < pixels; p++)
            to[p * pitch] = from[p * r->pitch];
    } else {
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t c = 0; c < r->length; c++)
                to[p * pitch + c] = from[p * r->pitch + c];
    }
}

DP_CLONES static void copy_range(const void *context, int64_t begin, int64_t end)
{
    const concat_pass *v = context;
    int64_t inner = v->group.inner;
    for (int64_t g = begin; g < end; g++) {
        int64_t n = g / v->blocks, first = g % v->blocks * inner;
        float *to = v->target + g * v->pixels * inner;
        run whole = run_at(v, n, first, inner);
        if (whole.length == inner && whole.pitch == inner) {
            copy_run(&whole, v->pixels, to, inner);
            continue;
        }
        for (int64_t p = 0; p < v->pixels; p += TILE) {
            int64_t count = v->pixels - p < TILE ? v->pixels - p : TILE;
            for (int64_t c = 0; c < inner;) {
                run r = run_at(v, n, first + c, inner - c);
                if (r.source)
                    r.source += p * r.pitch;
                copy_run(&r, count, to + p * inner + c, inner);
                c += r.length;
            }
        }
    }
}

static int64_t blocks_of(const dp_shape *shape, dp_cpu_grouped group)
{
    return (shape->dim[1] + group.inner - 1) / group.inner;
}

static concat_pass pass_to(const dp_shape *shape, dp_cpu_grouped group, void *target, int parts)
{
    return (concat_pass){.target = target,
                         .group = group,
                         .blocks = blocks_of(shape, group),
                         .pixels = group.height * group.width,
                         .parts = parts};
}

static part part_of(const dp_shape *shape, dp_cpu_grouped group, const void *data, int64_t first,
                    int64_t channels)
{
    return (part){data, group, blocks_of(shape, group), first, channels};
}

static dp_status concat_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    concat_op *c = op->state;
    const dp_shape *in = op->desc.in;
    concat_pass v = pass_to(&op->desc.out, c->out, args->out, 2);
    for (int i = 0; i < 2; i++)
        v.part[i] = part_of(&in[i], c->in[i], args->in[i], 0, in[i].dim[1]);
    dp_cpu_for(c->common.device->threads, c->out.groups, 1, copy_range, &v);
    return DP_OK;
}

static dp_status concat_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    concat_op *c = op->state;
    const dp_shape *in = op->desc.in;
    for (int i = 0; i < 2; i++) {
        if (!args->in_gradient[i])
            continue;
        concat_pass v = pass_to(&in[i], c->in[i], args->in_gradient[i], 1);
        v.part[0] = part_of(&op->desc.out, c->out, args->out_gradient, i ? in[0].dim[1] : 0, in[i].dim[1]);
        dp_cpu_for(c->common.device->threads, c->in[i].groups, 1, copy_range, &v);
    }
    return DP_OK;
}

dp_status dp_cpu_concat_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    (void)device;
    concat_op *c;
    DP_TRY(dp_calloc(1, sizeof *c, "a concatenation", &c, err));
    c->common =
        (dp_cpu_op){.forward = concat_forward, .backward = concat_backward, .destroy = dp_cpu_op_free};
    int tag = request->in[0].tag != DP_CPU_PLAIN ? request->in[0].tag : request->in[1].tag;
    for (int i = 0; i < 2; i++)
        c->in[i] = dp_cpu_group(&request->desc->in[i], request->in[i].tag);
    c->out = dp_cpu_group(&request->desc->out, tag);
    out->out = dp_cpu_layout(&request->desc->out, tag);
    out->state = c;
    return DP_OK;
}
