/* The loader: batches in order whatever the workers do, the same for any number of them; restarts, failures.
 */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/rng.h"
#include "data/dataset.h"
#include "data/order.h"
#include "dptrain/data.h"

enum { SAMPLES = 103, FEATURES = 5 };

/* ---- a data set whose samples are told apart, come late at random, and fail on demand ---- */

static _Atomic int64_t failing_sample;
static _Atomic int64_t slow_nanoseconds; /* at most, by the sample */
static _Atomic int64_t reads;

static dp_status read_sample(const dp_storage *storage, int64_t index, int64_t epoch, float *x, void *target,
                             dp_error *err)
{
    (void)storage, (void)epoch;
    int64_t turn = atomic_fetch_add(&reads, 1), slow = atomic_load(&slow_nanoseconds);
    if (slow > 0) {
        struct timespec t = {0, (long)dp_rng_below(0, DP_RNG_TEST, 0, 0, (uint64_t)turn, (uint64_t)slow)};
        nanosleep(&t, NULL);
    }
    if (index == atomic_load(&failing_sample))
        return dp_fail(err, DP_ERROR_IO, "sample %lld cannot be read", (long long)index);
    for (int f = 0; f < FEATURES; f++)
        x[f] = (float)(index * 10 + f);
    int32_t label = (int32_t)index;
    memcpy(target, &label, sizeof label);
    return DP_OK;
}

static dp_dataset *make_dataset(void)
{
    dp_storage *storage;
    dp_dataset *dataset;
    atomic_store(&failing_sample, -1);
    atomic_store(&slow_nanoseconds, 0);
    ck_assert(dp_storage_create(&storage, NULL) == DP_OK);
    storage->samples = SAMPLES;
    storage->read = read_sample;
    storage->target = DP_TARGET_LABELS;
    storage->target_elements = 1;
    ck_assert(dp_storage_set_shape(storage, 1, (int64_t[]){FEATURES}, "test", NULL) == DP_OK);
    ck_assert(dp_dataset_make(storage, NULL, SAMPLES, false, "test", SAMPLES, &dataset, NULL) == DP_OK);
    dp_storage_release(storage);
    return dataset;
}

static dp_loader *make_loader(const dp_loader_config *config)
{
    dp_loader *loader;
    dp_error err = {0};
    ck_assert_msg(dp_loader_create(config, &loader, &err) == DP_OK, "%s", err.message);
    return loader;
}

static void start(dp_loader *loader, int64_t epoch, int64_t first)
{
    dp_error err = {0};
    ck_assert_msg(dp_loader_start(loader, epoch, first, &err) == DP_OK, "%s", err.message);
}

static const dp_batch *next(dp_loader *loader)
{
    dp_error err = {0};
    const dp_batch *batch;
    ck_assert_msg(dp_loader_next(loader, &batch, &err) == DP_OK, "%s", err.message);
    return batch;
}

/* Which samples a batch holds, after checking that inputs and labels belong together. */
static void look(const dp_batch *batch, int64_t *samples)
{
    for (int64_t i = 0; i < batch->samples; i++) {
        int32_t label;
        memcpy(&label, (const char *)batch->y + i * 4, 4);
        for (int f = 0; f < FEATURES; f++)
            ck_assert(batch->x[i * FEATURES + f] == (float)(label * 10 + f));
        samples[i] = label;
    }
}

/* Reads the rest of an epoch from batch `first`; returns how many samples. */
static int64_t drain(dp_loader *loader, int64_t first, int64_t samples[SAMPLES])
{
    int64_t count = 0, index = first;
    const dp_batch *batch;
    while ((batch = next(loader))) {
        ck_assert_int_eq(batch->index, index++);
        look(batch, samples + count);
        count += batch->samples;
        dp_loader_release(loader, batch);
    }
    ck_assert_int_eq(index, dp_loader_batches(loader));
    ck_assert_ptr_null(next(loader)); /* and stays at the end */
    return count;
}

/* ---- order ---- */

START_TEST(an_epoch_is_delivered_in_order)
{
    dp_dataset *dataset = make_dataset();
    const int64_t sizes[] = {1, 10, 103, 1000};
    for (int s = 0; s < 4; s++) {
        for (int workers = 1; workers <= 4; workers++) {
            dp_loader_config config = {.dataset = dataset, .batch_size = sizes[s], .workers = workers};
            dp_loader *loader = make_loader(&config);
            int64_t samples[SAMPLES];
            ck_assert_int_eq(dp_loader_batches(loader), (SAMPLES + sizes[s] - 1) / sizes[s]);
            ck_assert_ptr_null(next(loader)); /* nothing before the start */
            start(loader, 0, 0);
            ck_assert_int_eq(drain(loader, 0, samples), SAMPLES);
            for (int i = 0; i < SAMPLES; i++)
                ck_assert_int_eq(samples[i], i);
            dp_loader_free(loader);
        }
    }
    dp_dataset_free(dataset);
}
END_TEST

START_TEST(a_last_batch_can_be_dropped)
{
    dp_dataset *dataset = make_dataset();
    dp_loader_config config = {.dataset = dataset, .batch_size = 10, .workers = 2, .drop_last = true};
    dp_loader *loader = make_loader(&config);
    int64_t samples[SAMPLES];
    ck_assert_int_eq(dp_loader_batches(loader), 10);
    start(loader, 0, 0);
    ck_assert_int_eq(drain(loader, 0, samples), 100);
    dp_loader_free(loader);
    dp_dataset_free(dataset);
}
END_TEST

START_TEST(a_shuffled_epoch_depends_on_seed_and_epoch_alone)
{
    dp_dataset *dataset = make_dataset();
    int64_t want[SAMPLES], samples[SAMPLES];
    atomic_store(&slow_nanoseconds, 20000);
    for (int workers = 1; workers <= 5; workers += 2) {
        dp_loader_config config = {
            .dataset = dataset, .batch_size = 7, .workers = workers, .shuffle = true, .seed = 9};
        dp_loader *loader = make_loader(&config);
        for (int64_t epoch = 3; epoch >= 0; epoch--) {
            start(loader, epoch, 0);
            ck_assert_int_eq(drain(loader, 0, samples), SAMPLES);
            dp_order_of_epoch(want, SAMPLES, 9, epoch);
            ck_assert_int_eq(memcmp(samples, want, sizeof want), 0);
        }
        dp_loader_free(loader);
    }
    dp_dataset_free(dataset);
}
END_TEST

START_TEST(an_epoch_can_begin_in_its_middle)
{
    dp_dataset *dataset = make_dataset();
    int64_t want[SAMPLES], samples[SAMPLES];
    dp_loader_config config = {
        .dataset = dataset, .batch_size = 10, .workers = 3, .shuffle = true, .seed = 1};
    dp_loader *loader = make_loader(&config);
    dp_order_of_epoch(want, SAMPLES, 1, 5);
    for (int64_t first = 0; first <= 11; first++) {
        start(loader, 5, first);
        int64_t count = drain(loader, first, samples);
        ck_assert_int_eq(count, first == 11 ? 0 : SAMPLES - 10 * first);
        for (int64_t i = 0; i < count; i++)
            ck_assert_int_eq(samples[i], want[10 * first + i]);
    }
    dp_error err = {0};
    ck_assert_int_eq(dp_loader_start(loader, 0, 12, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(dp_loader_start(loader, 0, -1, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(dp_loader_start(loader, -1, 0, &err), DP_ERROR_USAGE);
    dp_loader_free(loader);
    dp_dataset_free(dataset);
}
END_TEST

/* ---- restarts and the end ---- */

START_TEST(an_epoch_can_be_left_at_any_point)
{
    dp_dataset *dataset = make_dataset();
    int64_t want[SAMPLES], samples[SAMPLES];
    atomic_store(&slow_nanoseconds, 5000); /* workers are busy when the next epoch begins */
    for (int workers = 1; workers <= 4; workers += 3) {
        dp_loader_config config = {
            .dataset = dataset, .batch_size = 4, .workers = workers, .shuffle = true, .seed = 2};
        dp_loader *loader = make_loader(&config);
        for (uint64_t round = 0; round < 100; round++) {
            int64_t epoch = (int64_t)dp_rng_below(0, DP_RNG_TEST, 1, 0, round, 4);
            int64_t first = (int64_t)dp_rng_below(0, DP_RNG_TEST, 2, 0, round, 26);
            int64_t take = (int64_t)dp_rng_below(0, DP_RNG_TEST, 3, 0, round, 6);
            dp_order_of_epoch(want, SAMPLES, 2, epoch);
            start(loader, epoch, first);
            for (int64_t b = first; b < first + take && b < 26; b++) {
                const dp_batch *batch = next(loader);
                ck_assert_int_eq(batch->index, b);
                look(batch, samples);
                ck_assert_int_eq(memcmp(samples, want + 4 * b, (size_t)batch->samples * sizeof *want), 0);
                dp_loader_release(loader, batch);
            }
        }
        dp_loader_free(loader);
    }
    dp_dataset_free(dataset);
}
END_TEST

START_TEST(a_loader_can_be_freed_while_busy)
{
    dp_dataset *dataset = make_dataset();
    atomic_store(&slow_nanoseconds, 5000);
    for (int round = 0; round < 60; round++) {
        dp_loader_config config = {.dataset = dataset, .batch_size = 5, .workers = 1 + round % 4};
        dp_loader *loader = make_loader(&config);
        if (round % 3 > 0)
            start(loader, 0, 0);
        if (round % 3 == 2)
            next(loader); /* never released */
        dp_loader_free(loader);
    }
    dp_loader_free(NULL);
    dp_dataset_free(dataset);
}
END_TEST

/* ---- batches in the consumer's hands ---- */

START_TEST(two_batches_can_be_held)
{
    dp_dataset *dataset = make_dataset();
    dp_loader_config config = {.dataset = dataset, .batch_size = 4, .workers = 1};
    dp_loader *loader = make_loader(&config);
    start(loader, 0, 0);
    const dp_batch *held = next(loader), *batch;
    for (int64_t b = 1; b < 26; b++) {
        int64_t samples[4];
        batch = next(loader);
        ck_assert_int_eq(batch->index, b);
        look(held, samples); /* unharmed by what came after it */
        ck_assert_int_eq(samples[0], 4 * (b - 1));
        dp_loader_release(loader, held);
        held = batch;
    }
    ck_assert_ptr_null(next(loader));
    dp_error err = {0};
    ck_assert_int_eq(dp_loader_start(loader, 1, 0, &err), DP_ERROR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err.message, "1 of what was taken has not been released"));
    dp_loader_release(loader, held);
    dp_loader_release(loader, NULL);
    start(loader, 1, 0);
    next(loader);
    next(loader);
    ck_assert_int_eq(dp_loader_next(loader, &batch, &err), DP_ERROR_INTERNAL); /* rather than wait for ever */
    dp_loader_free(loader);
    dp_dataset_free(dataset);
}
END_TEST

/* While the consumer does nothing, the workers fill what room there is and then rest. */
START_TEST(workers_prepare_ahead_but_not_without_end)
{
    dp_dataset *dataset = make_dataset();
    dp_loader_config config = {.dataset = dataset, .batch_size = 1, .workers = 2};
    dp_loader *loader = make_loader(&config);
    atomic_store(&reads, 0);
    start(loader, 0, 0);
    const struct timespec pause = {0, 1000000};
    for (int i = 0; i < 5000 && atomic_load(&reads) < 5; i++)
        nanosleep(&pause, NULL);
    ck_assert_int_eq(atomic_load(&reads), 5); /* two workers and three spare slots */
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    ck_assert_int_eq(atomic_load(&reads), 5);
    dp_loader_free(loader);
    dp_dataset_free(dataset);
}
END_TEST

/* ---- failures ---- */

START_TEST(a_failure_comes_with_its_batch)
{
    dp_dataset *dataset = make_dataset();
    for (int workers = 1; workers <= 4; workers++) {
        dp_loader_config config = {.dataset = dataset, .batch_size = 10, .workers = workers};
        dp_loader *loader = make_loader(&config);
        atomic_store(&failing_sample, 57);
        for (int epoch = 0; epoch < 2; epoch++) {
            start(loader, epoch, 0);
            for (int64_t b = 0; b < 11; b++) {
                const dp_batch *batch;
                dp_error err = {0};
                dp_status status = dp_loader_next(loader, &batch, &err);
                if (b == 5) {
                    ck_assert_int_eq(status, DP_ERROR_IO);
                    ck_assert_int_eq(err.status, DP_ERROR_IO);
                    ck_assert_str_eq(err.message, "batch 5: sample 57 cannot be read");
                    ck_assert_ptr_null(batch);
                } else {
                    ck_assert_msg(status == DP_OK, "%s", err.message);
                    ck_assert_int_eq(batch->index, b);
                    dp_loader_release(loader, batch);
                }
            }
            ck_assert_ptr_null(next(loader));
        }
        atomic_store(&failing_sample, -1);
        int64_t samples[SAMPLES];
        start(loader, 2, 0);
        ck_assert_int_eq(drain(loader, 0, samples), SAMPLES); /* nothing is left of it */
        dp_loader_free(loader);
    }
    dp_dataset_free(dataset);
}
END_TEST

START_TEST(impossible_loaders_are_refused)
{
    dp_dataset *dataset = make_dataset();
    dp_loader *loader;
    dp_error err = {0};
    dp_loader_config config = {.dataset = dataset, .batch_size = 0, .workers = 1};
    ck_assert_int_eq(dp_loader_create(&config, &loader, &err), DP_ERROR_USAGE);
    config.batch_size = 1;
    config.workers = 0;
    ck_assert_int_eq(dp_loader_create(&config, &loader, &err), DP_ERROR_USAGE);
    config.workers = 1;
    config.batch_size = 104;
    config.drop_last = true;
    ck_assert_int_eq(dp_loader_create(&config, &loader, &err), DP_ERROR_USAGE);
    ck_assert_str_eq(err.message,
                     "dropping the last batch leaves nothing: 103 samples do not fill a batch of 104");
    ck_assert_ptr_null(loader);
    dp_dataset_free(dataset);
}
END_TEST

/* ---- memory ---- */

typedef struct counted_memory {
    int allocated, released;
    bool refuse;
} counted_memory;

static dp_status counted_alloc(void *context, size_t bytes, void **out, dp_error *err)
{
    counted_memory *memory = context;
    if (memory->refuse)
        return dp_fail(err, DP_ERROR_DEVICE, "no pinned memory");
    memory->allocated++;
    return dp_aligned_alloc(bytes, "a test", out, err);
}

static void counted_release(void *context, void *pointer)
{
    ((counted_memory *)context)->released++;
    dp_free(pointer);
}

START_TEST(batches_live_in_the_memory_that_was_given)
{
    dp_dataset *dataset = make_dataset();
    counted_memory memory = {0};
    dp_error err = {0};
    dp_loader *loader;
    dp_loader_config config = {.dataset = dataset,
                               .batch_size = 9,
                               .workers = 2,
                               .shuffle = true,
                               .alloc = counted_alloc,
                               .release = counted_release,
                               .alloc_context = &memory};
    memory.refuse = true;
    ck_assert_int_eq(dp_loader_create(&config, &loader, &err), DP_ERROR_DEVICE);
    ck_assert_str_eq(err.message, "no pinned memory");
    ck_assert_ptr_null(loader);
    memory.refuse = false;
    loader = make_loader(&config);
    int allocated = memory.allocated;
    ck_assert_int_gt(allocated, 0);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        const dp_batch *batch;
        start(loader, epoch, 0);
        while ((batch = next(loader))) {
            ck_assert_uint_eq((uintptr_t)batch->x % 64, 0);
            ck_assert_uint_eq((uintptr_t)batch->y % 64, 0);
            dp_loader_release(loader, batch);
        }
    }
    ck_assert_int_eq(memory.allocated, allocated); /* none while it runs */
    dp_loader_free(loader);
    ck_assert_int_eq(memory.released, memory.allocated);
    config.release = NULL;
    ck_assert_int_eq(dp_loader_create(&config, &loader, &err), DP_ERROR_USAGE);
    dp_dataset_free(dataset);
}
END_TEST

/* ---- a real data set, read by several loaders at once ---- */

typedef struct reader {
    const dp_dataset *dataset;
    double sum;
    bool failed;
} reader;

static void *read_all(void *argument)
{
    reader *r = argument;
    dp_loader_config config = {.dataset = r->dataset, .batch_size = 32, .workers = 2, .shuffle = true};
    dp_loader *loader;
    const dp_batch *batch;
    if (dp_loader_create(&config, &loader, NULL) != DP_OK || dp_loader_start(loader, 0, 0, NULL) != DP_OK) {
        r->failed = true;
        return NULL;
    }
    while (dp_loader_next(loader, &batch, NULL) == DP_OK && batch) {
        for (int64_t i = 0; i < batch->samples * 784; i++)
            r->sum += batch->x[i];
        dp_loader_release(loader, batch);
    }
    dp_loader_free(loader);
    return NULL;
}

START_TEST(loaders_share_a_data_set)
{
    dp_data_config config = dp_data_defaults();
    dp_dataset *train, *valid;
    config.source = "synthetic:300";
    config.no_validation = true;
    ck_assert(dp_data_open(&config, &train, &valid, NULL) == DP_OK);
    reader readers[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        readers[i] = (reader){.dataset = train};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_all, &readers[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++) {
        ck_assert(!readers[i].failed && readers[i].sum != 0);
        ck_assert(readers[i].sum == readers[0].sum); /* the same order, the same bits */
    }
    dp_dataset_free(train);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("loader");
    TCase *t = tcase_create("loader");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, an_epoch_is_delivered_in_order);
    tcase_add_test(t, a_last_batch_can_be_dropped);
    tcase_add_test(t, a_shuffled_epoch_depends_on_seed_and_epoch_alone);
    tcase_add_test(t, an_epoch_can_begin_in_its_middle);
    tcase_add_test(t, an_epoch_can_be_left_at_any_point);
    tcase_add_test(t, a_loader_can_be_freed_while_busy);
    tcase_add_test(t, two_batches_can_be_held);
    tcase_add_test(t, workers_prepare_ahead_but_not_without_end);
    tcase_add_test(t, a_failure_comes_with_its_batch);
    tcase_add_test(t, impossible_loaders_are_refused);
    tcase_add_test(t, batches_live_in_the_memory_that_was_given);
    tcase_add_test(t, loaders_share_a_data_set);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
