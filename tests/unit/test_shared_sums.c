/* Large buckets, which all devices of one memory sum and update together: the bits are those of the primary
 * alone, every element is updated once, and nobody reads old weights. */
#include <stdatomic.h>
#include <stdint.h>

#include "engine_run.h"

enum { EVERY_BUCKET = 1, DEVICES = 3 };

static const int64_t no_bucket = INT64_MAX;

static void open_sharing(run *r, int64_t least)
{
    open_engine(r, "mlp");
    r->engine->least_shared = least; /* before the first step: no worker has looked at it */
}

static void expect_same(const float *a, const float *b, int64_t count, const char *what)
{
    ck_assert_msg(memcmp(a, b, (size_t)count * sizeof *a) == 0, "%s: other bits", what);
}

/* ---- whatever the step: the same weights, in every replica ---- */

typedef struct variant {
    const char *name;
    dp_optimizer_config optimizer;
    double shares[8]; /* all 0: chunks */
    size_t bucket_bytes;
    const char *freeze;
} variant;

static const variant variants[] = {
    {.name = "momentum", .optimizer = {.momentum = 0.9, .weight_decay = 1e-2}},
    {.name = "nesterov", .optimizer = {.momentum = 0.9, .nesterov = true}},
    {.name = "plain SGD", .optimizer = {.weight_decay = 1e-2}},
    {.name = "AdamW", .optimizer = {.adamw = true, .weight_decay = 1e-2}},
    {.name = "small buckets", .optimizer = {.momentum = 0.9}, .bucket_bytes = 64},
    {.name = "idle primary", .optimizer = {.momentum = 0.9}, .shares = {0, 1, 1, 1, 1, 1, 1, 1}},
    {.name = "idle replica", .optimizer = {.momentum = 0.9}, .shares = {1, 0, 1, 1, 1, 1, 1, 1}},
    {.name = "frozen", .optimizer = {.momentum = 0.9}, .freeze = "fc2.*", .bucket_bytes = 64},
};

static void expect_equal_replicas(const run *r, const char *name)
{
    const dp_engine *e = r->engine;
    for (int k = 1; k < e->device_count; k++)
        expect_same(e->replicas[k].weights, e->primary->weights, e->arena.trainable_elements, name);
}

/* Steps, a window of two, batches that leave devices out, new weights in between and an evaluation. */
static float *train_variant(const variant *v, int devices, int64_t least, double *loss)
{
    run r;
    dp_error err = {0};
    dp_step_result result;
    open_devices(&r, devices);
    r.config.optimizer = v->optimizer;
    r.config.bucket_bytes = v->bucket_bytes;
    r.config.freeze = &v->freeze;
    r.config.freeze_count = v->freeze != NULL;
    for (int k = 0; k < devices && r.config.split == DP_SPLIT_CHUNK; k++)
        if (v->shares[k] > 0) {
            r.config.split = DP_SPLIT_SHARES;
            r.config.shares = v->shares;
        }
    open_sharing(&r, least);
    train(&r, 1, true, 1); /* most replicas have never had any weights */
    train(&r, 17, true, 1);
    if (least == EVERY_BUCKET && !v->freeze)
        expect_equal_replicas(&r, v->name);
    train(&r, 16, false, 0.5);
    train(&r, 1, true, 0.5);
    float *w = weights_of(&r);
    for (int64_t i = 0; i < dp_model_elements(r.model); i++)
        w[i] *= 0.5f;
    ck_assert(dp_engine_set_weights(r.engine, w, &err) == DP_OK);
    free(w);
    train(&r, 9, true, 1);
    const dp_host_batch batch = {61, x, labels};
    ck_assert(dp_engine_evaluate(r.engine, &batch, &result, &err) == DP_OK);
    *loss = result.loss;
    w = weights_of(&r);
    close_run(&r);
    return w;
}

START_TEST(the_bits_are_the_primarys)
{
    const variant *v = &variants[_i];
    for (int devices = 2; devices <= 8; devices += devices < 4 ? 1 : 4) {
        double alone_loss, shared_loss;
        float *alone = train_variant(v, devices, no_bucket, &alone_loss);
        float *shared = train_variant(v, devices, EVERY_BUCKET, &shared_loss);
        expect_same(alone, shared, MLP_ELEMENTS, v->name);
        ck_assert_msg(memcmp(&alone_loss, &shared_loss, sizeof alone_loss) == 0, "%s: loss", v->name);
        free(alone);
        free(shared);
    }
}
END_TEST

START_TEST(a_shared_update_allocates_nothing)
{
    run r;
    open_devices(&r, DEVICES);
    open_sharing(&r, EVERY_BUCKET);
    train(&r, 16, true, 1);
    uint64_t before[DEVICES];
    for (int k = 0; k < DEVICES; k++)
        before[k] = atomic_load(&r.engine->replicas[k].device->ledger.allocations);
    train(&r, 16, true, 1);
    for (int k = 0; k < DEVICES; k++)
        ck_assert_uint_eq(before[k], atomic_load(&r.engine->replicas[k].device->ledger.allocations));
    close_run(&r);
}
END_TEST

/* ---- which buckets ---- */

static bool shares_any(const dp_engine *e)
{
    bool any = false;
    for (int b = 0; b < e->arena.bucket_count; b++)
        any |= dp_is_shared(e, b);
    return any;
}

START_TEST(large_buckets_are_shared)
{
    const struct {
        int devices, hidden;
        bool evaluation, shared;
    } cases[] = {{2, 8192, false, true},  /* 36 x 8192 floats are 1.1 MiB */
                 {2, 7000, false, false}, /* 0.96 MiB */
                 {1, 8192, false, false},
                 {2, 8192, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run r;
        dp_error err = {0};
        open_devices(&r, cases[i].devices);
        r.config.evaluation_only = cases[i].evaluation;
        dp_model_config mc = {
            .name = "mlp", .input_rank = 3, .input_shape = {1, 6, 6}, .outputs = 1, .hidden_count = 1};
        mc.hidden[0] = cases[i].hidden;
        ck_assert(dp_model_build(&mc, &r.model, &err) == DP_OK);
        ck_assert_msg(dp_engine_create(r.context, r.model, &r.config, &r.engine, &err) == DP_OK, "%s",
                      err.message);
        ck_assert_msg(shares_any(r.engine) == cases[i].shared, "case %zu", i);
        close_run(&r);
    }
}
END_TEST

/* ---- watched and altered updates ---- */

static dp_backend_functions altered;
static const dp_backend_functions *original;
static const run *watched;
static _Atomic int updated[MLP_ELEMENTS + 1024]; /* by element of the arena */
static _Atomic int updates_of[DEVICES], wrong_copies, fetches, calls_left;
static _Atomic bool reports_nonfinite;

static void alter(run *r)
{
    original = r->context->backend->call;
    altered = *original;
    r->context->backend->call = &altered;
}

static dp_status watched_update(dp_device *device, void *stream, const dp_update_args *args, dp_error *err)
{
    const dp_engine *e = watched->engine;
    int64_t begin = args->weight - e->primary->weights;
    updates_of[device->id]++;
    wrong_copies += args->copy_count != DEVICES - 1 || begin % 16 != 0;
    for (int k = 0; k < args->copy_count; k++)
        wrong_copies += args->copies[k] != e->replicas[k + 1].weights + begin;
    for (int64_t i = begin; i < begin + args->count; i++)
        updated[i]++;
    return original->update(device, stream, args, err);
}

static dp_status watched_copy(dp_device *device, void *stream, dp_device *to, void *destination,
                              dp_device *from, const void *source, size_t bytes, dp_error *err)
{
    fetches += from && to && from != to;
    return original->copy(device, stream, to, destination, from, source, bytes, err);
}

START_TEST(every_element_is_updated_once)
{
    run r;
    open_devices(&r, DEVICES);
    alter(&r);
    altered.update = watched_update;
    altered.copy = watched_copy;
    r.config.loss_mode = DP_LOSS_GLOBAL; /* nothing is gathered */
    watched = &r;
    open_sharing(&r, EVERY_BUCKET);
    train(&r, 16, true, 1);
    int64_t elements = r.engine->arena.trainable_elements;
    ck_assert_int_le(elements, (int64_t)(sizeof updated / sizeof *updated));
    for (int64_t i = 0; i < elements; i++)
        ck_assert_msg(updated[i] == 1, "element %lld: %d times", (long long)i, updated[i]);
    for (int k = 0; k < DEVICES; k++)
        ck_assert_int_gt(updates_of[k], 0);
    ck_assert_int_eq(wrong_copies, 0);
    /* The weights were set; since then nobody has to fetch any. */
    int first = fetches;
    ck_assert_int_gt(first, 0);
    train(&r, 16, true, 1);
    ck_assert_int_eq(fetches, first);
    close_run(&r);
}
END_TEST

/* The last device alone meets something that is not finite in its part. */
static dp_status overflowing_update(dp_device *device, void *stream, const dp_update_args *args,
                                    dp_error *err)
{
    if (device->id == DEVICES - 1 && reports_nonfinite)
        __atomic_fetch_add(args->nonfinite, 1, __ATOMIC_RELAXED);
    return original->update(device, stream, args, err);
}

START_TEST(what_any_part_finds_not_finite_is_told)
{
    run r;
    dp_error err = {0};
    dp_step_result result;
    open_devices(&r, DEVICES);
    alter(&r);
    altered.update = overflowing_update;
    open_sharing(&r, EVERY_BUCKET);
    for (int i = 0; i < 3; i++) {
        reports_nonfinite = i == 1;
        dp_step step = make_step(&r, 16, true, 1);
        ck_assert(dp_engine_train(r.engine, &step, &result, &err) == DP_OK);
        ck_assert_int_eq(result.finite, i != 1); /* and it is forgotten by the next */
    }
    close_run(&r);
}
END_TEST

static dp_status failing_update(dp_device *device, void *stream, const dp_update_args *args, dp_error *err)
{
    if (atomic_fetch_sub(&calls_left, 1) == 1)
        return dp_fail(err, DP_ERROR_DEVICE, "an update on %d failed on purpose", device->id);
    return original->update(device, stream, args, err);
}

START_TEST(a_failing_part_ends_the_step_with_its_cause)
{
    int failures = 0;
    for (int n = 1; n < 100; n++) {
        run r;
        dp_error err = {0};
        dp_step_result result;
        open_devices(&r, DEVICES);
        alter(&r);
        altered.update = failing_update;
        open_sharing(&r, EVERY_BUCKET);
        calls_left = n;
        dp_step step = make_step(&r, 9, true, 1);
        dp_status status = dp_engine_train(r.engine, &step, &result, &err);
        bool reached = calls_left <= 0;
        ck_assert_int_eq(status, reached ? DP_ERROR_DEVICE : DP_OK);
        if (reached)
            ck_assert_ptr_nonnull(strstr(err.message, "failed on purpose"));
        close_run(&r);
        if (!reached)
            break;
        failures++;
    }
    ck_assert_int_ge(failures, DEVICES); /* a part of each */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("shared sums");
    TCase *t = tcase_create("shared sums");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, the_bits_are_the_primarys, 0, sizeof variants / sizeof *variants);
    tcase_add_test(t, a_shared_update_allocates_nothing);
    tcase_add_test(t, large_buckets_are_shared);
    tcase_add_test(t, every_element_is_updated_once);
    tcase_add_test(t, what_any_part_finds_not_finite_is_told);
    tcase_add_test(t, a_failing_part_ends_the_step_with_its_cause);
    suite_add_tcase(s, t);
    return run_tests(1, NULL, s); /* CPU devices alone share */
}
