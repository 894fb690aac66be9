#include "uses.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/announce.h"
#include "reference.h"

/* Relative to the largest value of a tensor: 100 roundings of float32. */
static const double tolerance = 1e-5;

__attribute__((format(printf, 2, 3))) static bool fail(char *message, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, USE_MESSAGE, format, args);
    va_end(args);
    return false;
}

static bool close_enough(const float *got, const double *wanted, int64_t count, const char *what,
                         char *message)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(wanted[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - wanted[i]) <= tolerance * largest + FLT_MIN))
            return fail(message, "%s[%lld of %lld] is %.9g, wanted %.9g (largest %.4g)", what, (long long)i,
                        (long long)count, (double)got[i], wanted[i], largest);
    return true;
}

static bool compare_results(const op_case *c, const case_result *got, const case_reference *wanted,
                            char *message)
{
    char what[64], detail[1024];
    const dp_op_desc *last = &c->chain[c->length - 1];
    bool good = close_enough(got->out, wanted->out, dp_shape_elements(&last->out), "output", detail);
    if (good && got->in_gradient)
        good = close_enough(got->in_gradient, wanted->in_gradient, dp_shape_elements(&c->chain[0].in[0]),
                            "input gradient", detail);
    for (int i = 0; i < c->length && good; i++)
        for (int k = 0; k < c->chain[i].params && good && got->gradient[i][k]; k++) {
            snprintf(what, sizeof what, "%s gradient of operation %d", k ? "bias" : "weight", i);
            good = close_enough(got->gradient[i][k], wanted->gradient[i][k],
                                case_param_elements(&c->chain[i], k), what, detail);
        }
    return good || fail(message, "case '%s': %s", c->text, detail);
}

/* ---- operations ---- */

#ifdef DP_TSAN
static const double most_flops = 5e6; /* the reference is some 50 times slower there */
#else
static const double most_flops = 1e12;
#endif

/* Calls body for every case of the table, with its data. */
typedef bool case_body(dp_device *device, const op_case *c, const case_data *data, char *message);

static bool for_every_case(dp_device *device, case_body *body, char *message)
{
    for (int i = 0; correctness_cases[i]; i++) {
        op_case c;
        if (!op_case_parse(correctness_cases[i], &c))
            return fail(message, "malformed case '%s'", correctness_cases[i]);
        double flops = 0;
        for (int k = 0; k < c.length; k++)
            flops += op_case_flops(&c.chain[k]);
        if (flops > most_flops)
            continue;
        bool decides = false;
        for (int k = 0; k < c.length; k++)
            decides |=
                c.chain[k].relu || c.chain[k].kind == DP_OP_RELU || c.chain[k].kind == DP_OP_MAX_POOL2D;
        case_data data;
        if (!case_data_make(&c, decides, (uint64_t)i, &data))
            return fail(message, "out of memory in a test");
        bool good = body(device, &c, &data, message);
        case_data_free(&data);
        if (!good)
            return false;
    }
    return true;
}

static bool run_and_compare(dp_device *device, const op_case *c, const case_data *data, chain_options options,
                            char *message)
{
    dp_error err = {0};
    case_result got;
    case_reference wanted;
    bool good = case_reference_run(c, data, &wanted);
    if (!good)
        fail(message, "out of memory in a test");
    else if (case_run(device, c, data, options, &got, &err) != DP_OK)
        good = fail(message, "case '%s': %s", c->text, err.message);
    else
        good = compare_results(c, &got, &wanted, message);
    if (err.status == DP_OK && good)
        case_result_free(&got);
    case_reference_free(&wanted);
    return good;
}

static bool check_training(dp_device *device, const op_case *c, const case_data *data, char *message)
{
    return run_and_compare(device, c, data, (chain_options){.training = true, .scribble = true}, message) &&
           run_and_compare(device, c, data, (chain_options){.training = true, .direct = true}, message);
}

bool use_operations(dp_device *device, char *message)
{
    return for_every_case(device, check_training, message);
}

static bool check_inference(dp_device *device, const op_case *c, const case_data *data, char *message)
{
    return run_and_compare(device, c, data, (chain_options){.scribble = true}, message);
}

bool use_inference(dp_device *device, char *message)
{
    return for_every_case(device, check_inference, message);
}

static bool same_bits(const float *a, const float *b, int64_t count)
{
    return (!a && !b) || memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

static bool check_repeat(dp_device *device, const op_case *c, const case_data *data, char *message)
{
    dp_error err = {0};
    case_result first = {0}, second = {0};
    chain_options options = {.training = true};
    bool good = true;
    if (case_run(device, c, data, options, &first, &err) != DP_OK ||
        case_run(device, c, data, options, &second, &err) != DP_OK)
        good = fail(message, "case '%s': %s", c->text, err.message);
    if (good) {
        good = same_bits(first.out, second.out, dp_shape_elements(&c->chain[c->length - 1].out)) &&
               same_bits(first.in_gradient, second.in_gradient, dp_shape_elements(&c->chain[0].in[0]));
        for (int i = 0; i < c->length; i++)
            for (int k = 0; k < c->chain[i].params; k++)
                good = good && same_bits(first.gradient[i][k], second.gradient[i][k],
                                         case_param_elements(&c->chain[i], k));
        if (!good)
            fail(message, "case '%s': two runs gave different bits", c->text);
    }
    case_result_free(&first);
    case_result_free(&second);
    return good;
}

bool use_repeats(dp_device *device, char *message)
{
    return for_every_case(device, check_repeat, message);
}

/* ---- finite differences of the reference ---- */

enum { LARGEST_CHECKED = 700 };

/* sum(out * out_gradient), which reference_backward differentiates. */
static bool objective(const op_case *c, const case_data *data, double *out)
{
    case_reference r;
    bool good = case_reference_run(c, data, &r);
    *out = 0;
    int64_t count = dp_shape_elements(&c->chain[c->length - 1].out);
    for (int64_t i = 0; i < count && good; i++)
        *out += r.out[i] * (double)data->out_gradient[i];
    case_reference_free(&r);
    return good;
}

static bool check_slopes(const op_case *c, const case_data *data, float *x, int64_t count,
                         const double *slope, const char *what, char *message)
{
    for (int64_t i = 0; i < count; i++) {
        float before = x[i], above = before + 1e-4f, below = before - 1e-4f;
        double high, low;
        x[i] = above;
        bool good = objective(c, data, &high);
        x[i] = below;
        good = good && objective(c, data, &low);
        x[i] = before;
        if (!good)
            return fail(message, "out of memory in a test");
        double measured = (high - low) / ((double)above - (double)below);
        if (fabs(measured - slope[i]) > 1e-6 * (1 + fabs(slope[i])))
            return fail(message, "case '%s': slope %lld of %s is %.9g, the reference says %.9g", c->text,
                        (long long)i, what, measured, slope[i]);
    }
    return true;
}

static int64_t size_of_case(const op_case *c)
{
    int64_t n = dp_shape_elements(&c->chain[0].in[0]);
    for (int i = 0; i < c->length; i++)
        for (int k = 0; k < 2; k++)
            n += case_param_elements(&c->chain[i], k);
    return n;
}

static bool check_case_slopes(const op_case *c, uint64_t seed, char *message)
{
    case_data data;
    case_reference r = {0};
    bool relu = false, pool = false;
    for (int i = 0; i < c->length; i++) {
        relu |= c->chain[i].relu || c->chain[i].kind == DP_OP_RELU;
        pool |= c->chain[i].kind == DP_OP_MAX_POOL2D;
    }
    /* Coarse data keep away from the kinks of ReLU behind a bias, fine data from ties in a window. */
    bool coarse = relu && !pool && c->chain[0].params == 2;
    bool good = case_data_make(c, coarse, seed, &data) && case_reference_run(c, &data, &r);
    if (!good)
        return fail(message, "out of memory in a test");
    good = check_slopes(c, &data, data.in, dp_shape_elements(&c->chain[0].in[0]), r.in_gradient, "the input",
                        message);
    for (int i = 0; i < c->length && good; i++)
        for (int k = 0; k < c->chain[i].params && good; k++)
            good = check_slopes(c, &data, data.param[i][k], case_param_elements(&c->chain[i], k),
                                r.gradient[i][k], k ? "a bias" : "a weight", message);
    case_data_free(&data);
    case_reference_free(&r);
    return good;
}

bool use_finite_differences(dp_device *device, char *message)
{
    (void)device;
    int checked = 0;
    for (int i = 0; correctness_cases[i]; i++) {
        op_case c;
        if (!op_case_parse(correctness_cases[i], &c))
            return fail(message, "malformed case '%s'", correctness_cases[i]);
        c.accumulate = false; /* a start is no part of the slope */
        if (size_of_case(&c) > LARGEST_CHECKED)
            continue;
        checked++;
        if (!check_case_slopes(&c, 1000 + (uint64_t)i, message))
            return false;
    }
    return checked >= 10 || fail(message, "only %d cases are small enough", checked);
}

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
    int32_t *label, *correct;
    double *output64, *target64, *sample_loss64, *gradient64;
} loss_host;

static bool loss_host_make(const loss_case *c, uint64_t seed, loss_host *h)
{
    size_t n = (size_t)c->samples, all = n * (size_t)c->elements;
    *h = (loss_host){malloc(all * 4), malloc(all * 4), malloc(n * 4),   malloc(all * 4), malloc(n * 4),
                     malloc(n * 4),   malloc(all * 8), malloc(all * 8), malloc(n * 8),   malloc(all * 8)};
    if (!h->output || !h->target || !h->sample_loss || !h->gradient || !h->label || !h->correct ||
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
    free(h->correct), free(h->output64), free(h->target64), free(h->sample_loss64), free(h->gradient64);
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
    DP_TRY(room_take(r, n * 4, NULL, &args.correct, err));
    if (c->in_place)
        args.gradient = output;
    else
        DP_TRY(room_take(r, all * 4, NULL, &args.gradient, err));
    DP_TRY(r->device->backend->call->loss(r->device, r->stream.handle, &args, err));
    DP_TRY(room_fetch(r, args.sample_loss, n * 4, h->sample_loss, err));
    DP_TRY(room_fetch(r, args.correct, n * 4, h->correct, err));
    return room_fetch(r, args.gradient, all * 4, h->gradient, err);
}

static bool compare_loss(const loss_case *c, const loss_host *h, char *message)
{
    if (!close_enough(h->sample_loss, h->sample_loss64, c->samples, "loss", message) ||
        !close_enough(h->gradient, h->gradient64, c->samples * c->elements, "gradient", message))
        return false;
    for (int64_t i = 0; i < c->samples; i++) {
        int64_t largest = 0;
        for (int64_t j = 1; j < c->elements; j++)
            if (h->output[i * c->elements + j] > h->output[i * c->elements + largest])
                largest = j;
        int32_t wanted = c->criterion == DP_CROSS_ENTROPY && largest == h->label[i];
        if (h->correct[i] != wanted)
            return fail(message, "correct[%lld] is %d", (long long)i, (int)h->correct[i]);
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
                   fail(message, "loss case %zu (criterion %d, %lld x %lld): %s", i, (int)c->criterion,
                        (long long)c->samples, (long long)c->elements, detail);
        } else {
            good = fail(message, "loss case %zu: %s", i, good ? err.message : "out of memory in a test");
        }
        room_close(&r);
        loss_host_free(&h);
        if (!good)
            return false;
    }
    return true;
}

/* ---- updates ---- */

enum { LARGEST_UPDATE = 70001, MOST_SOURCES = 7, STEPS = 3 };

typedef struct update_state {
    float *host;            /* LARGEST_UPDATE floats */
    double *weight, *m, *v; /* the reference's */
    float *device_weight, *device_m, *device_v, *sources[MOST_SOURCES];
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
                           .beta1 = 0.9f,
                           .beta2 = 0.999f,
                           .eps = 1e-8f,
                           .bias1 = (float)(1 - pow(0.9, step)),
                           .bias2 = (float)(1 - pow(0.999, step)),
                           .nonfinite = s->nonfinite};
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
    uint32_t counter;
    DP_TRY(room_fetch(r, s->nonfinite, sizeof counter, &counter, err));
    if (*good && counter != 0)
        *good = fail(message, "%u finite gradients were called not finite", counter);
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
            *good = fail(message, "gradient %lld of %g was not counted", (long long)at, (double)bad[k]);
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
                    good = fail(detail, "%.900s", err.message);
                room_close(&r);
                if (!good)
                    return fail(message, "%s, %d sources of %lld: %s", update_cases[u].name, source_counts[k],
                                (long long)counts[n], detail);
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
    good = good ? check_all_updates(device, &s, message) : fail(message, "out of memory in a test");
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
            return fail(message, "case '%s' cannot be made", texts[t]);
        bool linear = c.chain[0].kind == DP_OP_LINEAR, pool = c.chain[0].kind == DP_OP_MAX_POOL2D;
        int64_t at = pool ? 2 : 5; /* of the output: input (2, 1) in the window (1, 0), or element 5 */
        if (linear)
            data.param[0][0][5 * 16] = NAN;
        else
            data.in[pool ? 2 * 4 + 1 : 5] = NAN;
        bool good = case_run(device, &c, &data, (chain_options){.training = true}, &got, &err) == DP_OK;
        case_data_free(&data);
        if (!good)
            return fail(message, "case '%s': %s", texts[t], err.message);
        for (int64_t i = 0; i < dp_shape_elements(&c.chain[c.length - 1].out); i++)
            if (good && isnan(got.out[i]) != (i == at))
                good = fail(message, "case '%s' with a NaN: output %lld is %g", texts[t], (long long)i,
                            (double)got.out[i]);
        case_result_free(&got);
        if (!good)
            return false;
    }
    return true;
}

/* ---- to_plain ---- */

/* A convolution with the identity as its weight, in whatever layout it chooses, comes back as it went in. */
static dp_status identity_to_plain(room *r, int64_t channels, bool *good, dp_error *err)
{
    enum { BATCH = 2, HEIGHT = 7, WIDTH = 9 };
    const dp_backend_functions *call = r->device->backend->call;
    dp_shape shape = {4, {BATCH, channels, HEIGHT, WIDTH}};
    size_t count = (size_t)dp_shape_elements(&shape), bytes = count * sizeof(float);
    dp_op_desc desc = {.kind = DP_OP_CONV2D,
                       .inputs = 1,
                       .in[0] = shape,
                       .out = shape,
                       .params = 1,
                       .kernel = {1, 1},
                       .stride = {1, 1}};
    dp_op_request request = {.desc = &desc, .in[0] = {DP_LAYOUT_PLAIN, bytes}};
    float x[BATCH * 40 * HEIGHT * WIDTH], y[BATCH * 40 * HEIGHT * WIDTH], w[40 * 40] = {0};
    for (size_t i = 0; i < count; i++)
        x[i] = pseudo_random(5, (int64_t)i, 1);
    for (int64_t i = 0; i < channels; i++)
        w[i * channels + i] = 1;
    dp_op op;
    dp_op_args args = {0};
    float *plain;
    DP_TRY(dp_stream_create(r->device, "plain", &r->stream, err));
    DP_TRY(call->op_create(r->device, &request, &op, err));
    dp_status status = room_take(r, bytes, x, &args.in[0], err);
    if (status == DP_OK)
        status = room_take(r, (size_t)(channels * channels) * sizeof(float), w, &args.param[0], err);
    if (status == DP_OK)
        status = room_take(r, op.out.bytes, NULL, &args.out, err);
    if (status == DP_OK)
        status = room_take(r, op.workspace_bytes, NULL, &args.workspace, err);
    if (status == DP_OK)
        status = room_take(r, op.packed_bytes, NULL, &args.packed, err);
    if (status == DP_OK)
        status = room_take(r, bytes, NULL, &plain, err);
    if (status == DP_OK && op.packed_bytes)
        status = call->op_prepare(r->device, &op, r->stream.handle, &args, err);
    if (status == DP_OK)
        status = call->op_forward(r->device, &op, r->stream.handle, &args, err);
    if (status == DP_OK)
        status = call->to_plain(r->device, r->stream.handle, &shape, &op.out, args.out, plain, err);
    if (status == DP_OK)
        status = room_fetch(r, plain, bytes, y, err);
    *good = status == DP_OK && memcmp(x, y, bytes) == 0;
    call->op_destroy(r->device, &op);
    return status;
}

bool use_to_plain(dp_device *device, char *message)
{
    static const int64_t channels[] = {1, 3, 8, 13, 16, 40};
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
        room r = {.device = device};
        dp_error err = {0};
        bool good = false;
        dp_status status = identity_to_plain(&r, channels[i], &good, &err);
        room_close(&r);
        if (status != DP_OK)
            return fail(message, "%lld channels: %.2000s", (long long)channels[i], err.message);
        if (!good)
            return fail(message, "%lld channels did not come back as they went in", (long long)channels[i]);
    }
    return true;
}

/* ---- threads ---- */

typedef struct thread_of_device {
    pthread_t thread;
    dp_device *device;
    use *function;
    bool good;
    char message[USE_MESSAGE];
} thread_of_device;

static void *drive(void *argument)
{
    thread_of_device *t = argument;
    dp_error err = {0};
    if (dp_device_enter(t->device, &err) != DP_OK) {
        t->good = fail(t->message, "%s", err.message);
        return NULL;
    }
    t->good = t->function(t->device, t->message);
    dp_device_leave(t->device);
    return NULL;
}

bool use_on_devices(dp_backend *backend, int count, use *function, char *message)
{
    static const size_t stack = 8u << 20;
    thread_of_device *threads = calloc((size_t)count, sizeof *threads);
    if (!threads)
        return fail(message, "out of memory in a test");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack);
    bool good = true;
    int started = 0;
    for (; started < count && good; started++) {
        threads[started].device = &backend->devices[started];
        threads[started].function = function;
        if (pthread_create(&threads[started].thread, &attributes, drive, &threads[started]) != 0) {
            good = fail(message, "cannot start a thread");
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i].thread, NULL);
        if (good && !threads[i].good)
            good = fail(message, "device %d: %.2500s", i, threads[i].message);
    }
    pthread_attr_destroy(&attributes);
    free(threads);
    return good;
}
