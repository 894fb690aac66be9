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

bool use_failed(char *message, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, USE_MESSAGE, format, args);
    va_end(args);
    return false;
}

bool close_enough(const float *got, const double *wanted, int64_t count, const char *what, char *message)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(wanted[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - wanted[i]) <= tolerance * largest + FLT_MIN))
            return use_failed(message, "%s[%lld of %lld] is %.9g, wanted %.9g (largest %.4g)", what,
                              (long long)i, (long long)count, (double)got[i], wanted[i], largest);
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
    for (int i = 0; i < c->length && good; i++)
        for (int k = 0; k < 2 && good && got->buffer[i][k]; k++) {
            snprintf(what, sizeof what, "running %s of operation %d", k ? "variance" : "mean", i);
            good = close_enough(got->buffer[i][k], wanted->buffer[i][k], case_buffer_elements(&c->chain[i]),
                                what, detail);
        }
    return good || use_failed(message, "case '%s': %s", c->text, detail);
}

/* ---- operations ---- */

#if defined(DP_TSAN) || defined(__SANITIZE_ADDRESS__)
static const double most_flops = 5e6; /* the reference is 5 to 50 times slower there */
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
            return use_failed(message, "malformed case '%s'", correctness_cases[i]);
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
            return use_failed(message, "out of memory in a test");
        bool good = body(device, &c, &data, message);
        case_data_free(&data);
        if (!good)
            return false;
    }
    return true;
}

/* A run by each of `count` options, which are all in training or none, against one of the reference. */
static bool run_and_compare(dp_device *device, const op_case *c, const case_data *data,
                            const chain_options *options, int count, char *message)
{
    case_reference wanted;
    bool good = case_reference_run(c, data, options[0].training, &wanted);
    if (!good)
        use_failed(message, "out of memory in a test");
    for (int i = 0; i < count && good; i++) {
        dp_error err = {0};
        case_result got;
        good = case_run(device, c, data, options[i], &got, &err) == DP_OK
                   ? compare_results(c, &got, &wanted, message)
                   : use_failed(message, "case '%s': %s", c->text, err.message);
        case_result_free(&got);
    }
    case_reference_free(&wanted);
    return good;
}

static bool check_training(dp_device *device, const op_case *c, const case_data *data, char *message)
{
    static const chain_options options[] = {{.training = true, .scribble = true},
                                            {.training = true, .direct = true, .replica = true}};
    return run_and_compare(device, c, data, options, 2, message);
}

bool use_operations(dp_device *device, char *message)
{
    return for_every_case(device, check_training, message);
}

static bool check_inference(dp_device *device, const op_case *c, const case_data *data, char *message)
{
    return run_and_compare(device, c, data, &(chain_options){.scribble = true}, 1, message);
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
        good = use_failed(message, "case '%s': %s", c->text, err.message);
    if (good) {
        good = same_bits(first.out, second.out, dp_shape_elements(&c->chain[c->length - 1].out)) &&
               same_bits(first.in_gradient, second.in_gradient, dp_shape_elements(&c->chain[0].in[0]));
        for (int i = 0; i < c->length; i++)
            for (int k = 0; k < c->chain[i].params; k++)
                good = good && same_bits(first.gradient[i][k], second.gradient[i][k],
                                         case_param_elements(&c->chain[i], k));
        if (!good)
            use_failed(message, "case '%s': two runs gave different bits", c->text);
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
    bool good = case_reference_run(c, data, true, &r);
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
            return use_failed(message, "out of memory in a test");
        double measured = (high - low) / ((double)above - (double)below);
        if (fabs(measured - slope[i]) > 1e-6 * (1 + fabs(slope[i])))
            return use_failed(message, "case '%s': slope %lld of %s is %.9g, the reference says %.9g",
                              c->text, (long long)i, what, measured, slope[i]);
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
    bool good = case_data_make(c, coarse, seed, &data) && case_reference_run(c, &data, true, &r);
    if (!good)
        return use_failed(message, "out of memory in a test");
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
            return use_failed(message, "malformed case '%s'", correctness_cases[i]);
        c.accumulate = false; /* a start is no part of the slope */
        if (size_of_case(&c) > LARGEST_CHECKED)
            continue;
        checked++;
        if (!check_case_slopes(&c, 1000 + (uint64_t)i, message))
            return false;
    }
    return checked >= 10 || use_failed(message, "only %d cases are small enough", checked);
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
        t->good = use_failed(t->message, "%s", err.message);
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
        return use_failed(message, "out of memory in a test");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack);
    bool good = true;
    int started = 0;
    for (; started < count && good; started++) {
        threads[started].device = &backend->devices[started];
        threads[started].function = function;
        if (pthread_create(&threads[started].thread, &attributes, drive, &threads[started]) != 0) {
            good = use_failed(message, "cannot start a thread");
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i].thread, NULL);
        if (good && !threads[i].good)
            good = use_failed(message, "device %d: %.2500s", i, threads[i].message);
    }
    pthread_attr_destroy(&attributes);
    free(threads);
    return good;
}
