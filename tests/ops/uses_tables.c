/* Losses, updates and values that are not numbers: the uses of the smaller tables. */
#include "uses.h"
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "cpu/announce.h"
#include "reference.h"

/* ---- device memory for the uses below ---- */

typedef struct room {
    dp_device *device;
    dp_stream stream;
    void *pointer[80];
    size_t bytes[80];
    int count;
} room;

static dp_status room_take(room *r, size_t bytes, const void *from, void *out_pointer, dp_error *err)
{
    void *p = NULL;
    DP_TRY(dp_memory_alloc(r->device, DP_MEM_STAGING, bytes, &p, err));
    r->pointer[r->count] = p;
    r->bytes[r->count++] = bytes;
    memcpy(out_pointer, &p, sizeof p);
    return from ? dp_copy(&r->stream, r->device, p, NULL, from, bytes, err) : DP_OK;
}

static dp_status room_fetch(room *r, const void *from, size_t bytes, void *to, dp_error *err)
{
    DP_TRY(dp_copy(&r->stream, NULL, to, r->device, from, bytes, err));
    return dp_stream_synchronize(&r->stream, err);
}

static void room_close(room *r)
{
    while (r->count > 0) {
        r->count--;
        dp_memory_free(r->device, DP_MEM_STAGING, r->bytes[r->count], r->pointer[r->count]);
    }
    dp_stream_destroy(&r->stream);
}

/* Values in [-range, range] with 20 bits, the same for the same seed. */
static float pseudo_random(uint64_t seed, int64_t i, float range)
{
    uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xd1342543de82ef95u;
    z = (z ^ (z >> 32)) * 0xbf58476d1ce4e5b9u;
    z ^= z >> 29;
    return range * ((float)(z >> 44) / 524288.0f - 1);
}

/* ---- losses ---- */

typedef struct loss_host {
    float *output, *target, *sample_loss, *gradient;
    int32_t *label;
    dp_loss_counts *counts;
    double *output64, *target64, *sample_loss64, *gradient64;
} loss_host;

static bool loss_host_make(const loss_case *c, uint64_t seed, loss_host *h)
{
    size_t n = (size_t)c->samples, all = n * (size_t)c->elements;
    *h = (loss_host){malloc(all * 4), malloc(all * 4), malloc(n * 4),
                     malloc(all * 4), malloc(n * 4),   malloc(n * sizeof(dp_loss_counts)),
                     malloc(all * 8), malloc(all * 8), malloc(n * 8),
                     malloc(all * 8)};
    if (!h->output || !h->target || !h->sample_loss || !h->gradient || !h->label || !h->counts ||
        !h->output64 || !h->target64 || !h->sample_loss64 || !h->gradient64)
        return false;
    for (size_t i = 0; i < all; i++) {
        /* Some far out, some equal to their target. */
        h->output[i] = pseudo_random(seed, (int64_t)i, i % 5 == 0 ? 90 : 4);
        h->target[i] = c->criterion != DP_BCE_WITH_LOGITS ? pseudo_random(seed + 1, (int64_t)i, 4)
                       : i % 3 == 0                       ? pseudo_random(seed + 1, (int64_t)i, 0.5f) + 0.5f
                                                          : (float)(i % 2);
        if (c->criterion != DP_BCE_WITH_LOGITS && i % 7 == 0)
            h->target[i] = h->output[i];
        h->output64[i] = (double)h->output[i];
        h->target64[i] = (double)h->target[i];
    }
    for (size_t i = 0; i < n; i++)
        h->label[i] = (int32_t)((i * 7 + 3) % (size_t)c->elements);
    if (c->elements > 3) { /* equal largest logits: the first counts */
        h->output[1] = h->output[3] = 95;
        h->output64[1] = h->output64[3] = 95;
    }
    return true;
}

static void loss_host_free(loss_host *h)
{
    free(h->output), free(h->target), free(h->sample_loss), free(h->gradient), free(h->label);
    free(h->counts), free(h->output64), free(h->target64), free(h->sample_loss64), free(h->gradient64);
}

static dp_status run_loss(room *r, const loss_case *c, loss_host *h, dp_error *err)
{
    size_t n = (size_t)c->samples, all = n * (size_t)c->elements;
    dp_loss_args args = {.criterion = c->criterion,
                         .samples = c->samples,
                         .elements = c->elements,
                         .pos_weight = c->pos_weight,
                         .scale = c->scale};
    float *output;
    DP_TRY(dp_stream_create(r->device, "loss", &r->stream, err));
    DP_TRY(room_take(r, all * 4, h->output, &output, err));
    args.output = output;
    if (c->criterion == DP_CROSS_ENTROPY)
        DP_TRY(room_take(r, n * 4, h->label, &args.target, err));
    else
        DP_TRY(room_take(r, all * 4, h->target, &args.target, err));
    DP_TRY(room_take(r, n * 4, NULL, &args.sample_loss, err));
    DP_TRY(room_take(r, n * sizeof *args.counts, NULL, &args.counts, err));
    if (c->in_place)
        args.gradient = output;
    else
        DP_TRY(room_take(r, all * 4, NULL, &args.gradient, err));
    DP_TRY(r->device->backend->call->loss(r->device, r->stream.handle, &args, err));
    DP_TRY(room_fetch(r, args.sample_loss, n * 4, h->sample_loss, err));
    DP_TRY(room_fetch(r, args.counts, n * sizeof *args.counts, h->counts, err));
    return room_fetch(r, args.gradient, all * 4, h->gradient, err);
}

static dp_loss_counts count_by_hand(const loss_case *c, const loss_host *h, int64_t sample)
{
    /* The outputs as they were: the gradient may have come in their place on the device only. */
    const float *output = h->output + sample * c->elements, *target = h->target + sample * c->elements;
    dp_loss_counts counts = {0};
    int64_t largest = 0;
    for (int64_t j = 0; j < c->elements; j++) {
        largest = output[j] > output[largest] ? j : largest;
        if (c->criterion == DP_BCE_WITH_LOGITS) {
            counts.predicted += output[j] > 0;
            counts.actual += target[j] > 0.5f;
            counts.correct += output[j] > 0 && target[j] > 0.5f;
        }
    }
    if (c->criterion == DP_CROSS_ENTROPY)
        counts.correct = largest == h->label[sample];
    return counts;
}

static bool compare_loss(const loss_case *c, const loss_host *h, char *message)
{
    if (!close_enough(h->sample_loss, h->sample_loss64, c->samples, "loss", message) ||
        !close_enough(h->gradient, h->gradient64, c->samples * c->elements, "gradient", message))
        return false;
    for (int64_t i = 0; i < c->samples; i++) {
        const dp_loss_counts wanted = count_by_hand(c, h, i), *got = &h->counts[i];
        if (got->correct != wanted.correct || got->predicted != wanted.predicted ||
            got->actual != wanted.actual)
            return use_failed(message, "counts[%lld] are %d, %d, %d, not %d, %d, %d", (long long)i,
                              (int)got->correct, (int)got->predicted, (int)got->actual, (int)wanted.correct,
                              (int)wanted.predicted, (int)wanted.actual);
    }
    return true;
}

bool use_losses(dp_device *device, char *message)
{
    for (size_t i = 0; i < loss_case_count; i++) {
        const loss_case *c = &loss_cases[i];
        dp_error err = {0};
        loss_host h;
        room r = {.device = device};
        bool good = loss_host_make(c, i, &h);
        if (good && run_loss(&r, c, &h, &err) == DP_OK) {
            reference_loss(c->criterion, c->samples, c->elements, h.output64, h.label, h.target64,
                           (double)c->pos_weight, (double)c->scale, h.sample_loss64, h.gradient64);
            char detail[1024];
            good = compare_loss(c, &h, detail) ||
                   use_failed(message, "loss case %zu (criterion %d, %lld x %lld): %s", i, (int)c->criterion,
                              (long long)c->samples, (long long)c->elements, detail);
        } else {
            good =
                use_failed(message, "loss case %zu: %s", i, good ? err.message : "out of memory in a test");
        }
        room_close(&r);
        loss_host_free(&h);
        if (!good)
            return false;
    }
    return true;
}

/* ---- updates ---- */

enum { LARGEST_UPDATE = 70001, MOST_SOURCES = 7, STEPS = 3, COPIES = 2 };

typedef struct update_state {
    float *host;            /* LARGEST_UPDATE floats */
    double *weight, *m, *v; /* the reference's */
    float *device_weight, *device_m, *device_v, *sources[MOST_SOURCES];
    float *copies[COPIES]; /* of the weights, where the backend's devices have one memory; else NULL */
    uint32_t *nonfinite;
} update_state;

static float source_value(int step, int source, int64_t i)
{
    return pseudo_random((uint64_t)(step * MOST_SOURCES + source), i, 1);
}

static dp_status update_once(room *r, const update_case *c, update_state *s, int64_t count, int sources,
                             int step, dp_error *err)
{
    for (int k = 0; k < sources; k++) {
        for (int64_t i = 0; i < count; i++)
            s->host[i] = source_value(step, k, i);
        DP_TRY(dp_copy(&r->stream, r->device, s->sources[k], NULL, s->host, (size_t)count * 4, err));
        DP_TRY(dp_stream_synchronize(&r->stream, err));
    }
    bool adam = c->kind == DP_ADAMW;
    dp_update_args args = {.kind = c->kind,
                           .count = count,
                           .source_count = sources,
                           .sources = (const float *const *)s->sources,
                           .weight = s->device_weight,
                           .moment1 = adam || c->momentum != 0 ? s->device_m : NULL,
                           .moment2 = adam ? s->device_v : NULL,
                           .lr = c->lr,
                           .momentum = c->momentum,
                           .weight_decay = c->weight_decay,
                           .nesterov = c->nesterov,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8f,
                           .bias1 = (float)(1 - pow(0.9, step)),
                           .bias2 = (float)(1 - pow(0.999, step)),
                           .nonfinite = s->nonfinite,
                           .copies = s->copies,
                           .copy_count = s->copies[0] ? COPIES : 0};
    return r->device->backend->call->update(r->device, r->stream.handle, &args, err);
}

static void reference_update(const update_case *c, update_state *s, int64_t count, int sources, int step)
{
    reference_optimizer o = {c->kind, (double)c->lr, (double)c->momentum, (double)c->weight_decay, 0.9,
                             0.999,   1e-8,          c->nesterov};
    for (int64_t i = 0; i < count; i++) {
        double g = 0;
        for (int k = 0; k < sources; k++)
            g += (double)source_value(step, k, i);
        reference_step(&o, step, g, &s->weight[i], &s->m[i], &s->v[i]);
    }
}

static dp_status update_start(room *r, update_state *s, int64_t count, int sources, dp_error *err)
{
    size_t bytes = (size_t)count * sizeof(float);
    DP_TRY(dp_stream_create(r->device, "update", &r->stream, err));
    memset(s->host, 0, bytes);
    DP_TRY(room_take(r, bytes, s->host, &s->device_m, err));
    DP_TRY(room_take(r, bytes, s->host, &s->device_v, err));
    DP_TRY(room_take(r, sizeof(uint32_t), s->host, &s->nonfinite, err));
    for (int k = 0; k < sources; k++)
        DP_TRY(room_take(r, bytes, NULL, &s->sources[k], err));
    for (int k = 0; k < COPIES; k++) {
        s->copies[k] = NULL;
        if (r->device->backend->call->one_memory)
            DP_TRY(room_take(r, bytes, s->host, &s->copies[k], err));
    }
    DP_TRY(dp_stream_synchronize(&r->stream, err));
    for (int64_t i = 0; i < count; i++) {
        s->host[i] = pseudo_random(99, i, 1);
        s->weight[i] = (double)s->host[i];
        s->m[i] = s->v[i] = 0;
    }
    DP_TRY(room_take(r, bytes, s->host, &s->device_weight, err));
    return dp_stream_synchronize(&r->stream, err);
}

static dp_status check_update(room *r, const update_case *c, update_state *s, int64_t count, int sources,
                              bool *good, char *message, dp_error *err)
{
    DP_TRY(update_start(r, s, count, sources, err));
    for (int step = 1; step <= STEPS; step++) {
        DP_TRY(update_once(r, c, s, count, sources, step, err));
        DP_TRY(dp_stream_synchronize(&r->stream, err));
        reference_update(c, s, count, sources, step);
    }
    DP_TRY(room_fetch(r, s->device_weight, (size_t)count * 4, s->host, err));
    *good = close_enough(s->host, s->weight, count, "weight", message);
    for (int k = 0; k < COPIES && s->copies[k]; k++)
        if (*good && memcmp(s->copies[k], s->host, (size_t)count * 4) != 0)
            *good = use_failed(message, "copy %d of the weights differs", k);
    uint32_t counter;
    DP_TRY(room_fetch(r, s->nonfinite, sizeof counter, &counter, err));
    if (*good && counter != 0)
        *good = use_failed(message, "%u finite gradients were called not finite", counter);
    /* One bad value in the last source, first, middle and last in turn. */
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int k = 0; k < 3 && *good; k++) {
        uint32_t before = counter;
        int64_t at = k == 0 ? 0 : k == 1 ? count / 2 : count - 1;
        DP_TRY(update_once(r, c, s, count, sources, STEPS + 1, err));
        DP_TRY(
            dp_copy(&r->stream, r->device, s->sources[sources - 1] + at, NULL, &bad[k], sizeof bad[k], err));
        dp_update_args args = {.kind = DP_SGD,
                               .count = count,
                               .source_count = sources,
                               .sources = (const float *const *)s->sources,
                               .weight = s->device_weight,
                               .nonfinite = s->nonfinite};
        DP_TRY(r->device->backend->call->update(r->device, r->stream.handle, &args, err));
        DP_TRY(room_fetch(r, s->nonfinite, sizeof counter, &counter, err));
        if (counter <= before)
            *good = use_failed(message, "gradient %lld of %g was not counted", (long long)at, (double)bad[k]);
    }
    return DP_OK;
}

static bool check_all_updates(dp_device *device, update_state *s, char *message)
{
    static const int source_counts[] = {1, 2, 3, 4, 5, MOST_SOURCES};
    static const int64_t counts[] = {1, 7, 1024, 1025, 5003, LARGEST_UPDATE};
    for (size_t u = 0; u < update_case_count; u++)
        for (size_t k = 0; k < sizeof source_counts / sizeof *source_counts; k++)
            for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
                room r = {.device = device};
                dp_error err = {0};
                char detail[1024];
                bool good = true;
                if (check_update(&r, &update_cases[u], s, counts[n], source_counts[k], &good, detail, &err) !=
                    DP_OK)
                    good = use_failed(detail, "%.900s", err.message);
                room_close(&r);
                if (!good)
                    return use_failed(message, "%s, %d sources of %lld: %s", update_cases[u].name,
                                      source_counts[k], (long long)counts[n], detail);
            }
    return true;
}

bool use_updates(dp_device *device, char *message)
{
    update_state s = {.host = malloc(LARGEST_UPDATE * 4),
                      .weight = malloc(LARGEST_UPDATE * 8),
                      .m = malloc(LARGEST_UPDATE * 8),
                      .v = malloc(LARGEST_UPDATE * 8)};
    bool good = s.host && s.weight && s.m && s.v;
    good = good ? check_all_updates(device, &s, message) : use_failed(message, "out of memory in a test");
    free(s.host), free(s.weight), free(s.m), free(s.v);
    return good;
}

/* ---- values that are not numbers ---- */

/* A NaN comes out of ReLU and of the maximum of its window, as in PyTorch, and nowhere else. */
bool use_not_a_number(dp_device *device, char *message)
{
    static const char *const texts[] = {"1x1x4x4 pool,k2,s2", "1x1x4x4 pool,k2,s2,relu", "1x16 relu",
                                        "1x16 linear16,nobias,relu"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        op_case c;
        case_data data;
        case_result got;
        dp_error err = {0};
        if (!op_case_parse(texts[t], &c) || !case_data_make(&c, true, t, &data))
            return use_failed(message, "case '%s' cannot be made", texts[t]);
        bool linear = c.chain[0].kind == DP_OP_LINEAR, pool = c.chain[0].kind == DP_OP_MAX_POOL2D;
        int64_t at = pool ? 2 : 5; /* of the output: input (2, 1) in the window (1, 0), or element 5 */
        if (linear)
            data.param[0][0][5 * 16] = NAN;
        else
            data.in[pool ? 2 * 4 + 1 : 5] = NAN;
        bool good = case_run(device, &c, &data, (chain_options){.training = true}, &got, &err) == DP_OK;
        case_data_free(&data);
        if (!good)
            return use_failed(message, "case '%s': %s", texts[t], err.message);
        for (int64_t i = 0; i < dp_shape_elements(&c.chain[c.length - 1].out); i++)
            if (good && isnan(got.out[i]) != (i == at))
                good = use_failed(message, "case '%s' with a NaN: output %lld is %g", texts[t], (long long)i,
                                  (double)got.out[i]);
        case_result_free(&got);
        if (!good)
            return false;
    }
    return true;
}
