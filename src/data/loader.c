/* Batches prepared ahead by worker threads, delivered in order: what base/ahead.c makes are batches, each in
 * its part of one block of memory. */
#include "dptrain/data.h"

#include <stdio.h>
#include <string.h>

#include "base/ahead.h"
#include "base/memory.h"
#include "base/tracks.h"
#include "data/order.h"

enum {
    MAX_HANDED_OUT = 2,
    SPARE_SLOTS = MAX_HANDED_OUT + 1, /* beyond one a worker: those with the consumer, and one ready */
    ALIGNMENT = 64,
};

typedef struct batch_slot {
    dp_batch batch;
    float *x;
    char *y;
} batch_slot;

struct dp_loader {
    dp_loader_config config;
    const dp_dataset_info *info;
    int64_t batches; /* an epoch */
    int64_t *order;  /* of the epoch; NULL: as the data set has it. Written only while nobody fills */
    int64_t epoch;   /* likewise */

    char *memory; /* of all slots */
    batch_slot *slots;
    int slot_count;

    dp_track **tracks; /* in a trace: one a thread */
    dp_ahead *ahead;
};

/* ---- workers ---- */

static int64_t samples_of(const dp_loader *loader, int64_t batch)
{
    int64_t left = loader->info->samples - batch * loader->config.batch_size;
    return left < loader->config.batch_size ? left : loader->config.batch_size;
}

static dp_status fill(const dp_loader *loader, batch_slot *slot, dp_error *err)
{
    const dp_dataset_info *info = loader->info;
    int64_t first = slot->batch.index * loader->config.batch_size;
    for (int64_t i = 0; i < slot->batch.samples; i++) {
        int64_t sample = loader->order ? loader->order[first + i] : first + i;
        DP_TRY(dp_dataset_read(loader->config.dataset, sample, loader->epoch, slot->x + i * info->elements,
                               slot->y + (size_t)i * info->target_bytes, err));
    }
    return DP_OK;
}

static dp_status make_batch(void *user, int thread, int64_t index, int64_t slot, dp_error *err)
{
    dp_loader *loader = user;
    batch_slot *s = &loader->slots[slot];
    s->batch.index = index;
    s->batch.samples = samples_of(loader, index);
    dp_track_push(loader->tracks[thread], "read batch", NULL, 0, -1);
    dp_status status = fill(loader, s, err);
    dp_track_pop(loader->tracks[thread]);
    if (status != DP_OK)
        dp_error_prefix(err, "batch %lld", (long long)index);
    return status;
}

/* ---- making and freeing ---- */

static dp_status check_config(const dp_loader_config *config, dp_error *err)
{
    if (config->batch_size < 1 || config->workers < 1)
        return dp_fail(err, DP_ERROR_USAGE,
                       "a loader needs a batch of at least 1 (%lld given) and at least 1 "
                       "worker (%d given)",
                       (long long)config->batch_size, config->workers);
    if (!config->alloc != !config->release)
        return dp_fail(err, DP_ERROR_USAGE, "a loader needs both alloc and release, or neither");
    int64_t samples = dp_dataset_info_of(config->dataset)->samples;
    if (config->drop_last && samples < config->batch_size)
        return dp_fail(err, DP_ERROR_USAGE,
                       "dropping the last batch leaves nothing: %lld sample%s not fill a batch of %lld",
                       (long long)samples, samples == 1 ? " does" : "s do", (long long)config->batch_size);
    return DP_OK;
}

static dp_status allocate(dp_loader *loader, size_t bytes, dp_error *err)
{
    void *memory = NULL;
    if (loader->config.alloc)
        DP_TRY(loader->config.alloc(loader->config.alloc_context, bytes, &memory, err));
    else
        DP_TRY(dp_aligned_alloc(bytes, "batches", &memory, err));
    loader->memory = memory;
    return DP_OK;
}

static bool aligned_product(int64_t count, size_t size, size_t *out)
{
    if (__builtin_mul_overflow((size_t)count, size, out) || *out > SIZE_MAX - ALIGNMENT)
        return false;
    *out = (*out + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return true;
}

/* One block for all slots: pinned memory is dear to allocate. */
static dp_status make_slots(dp_loader *loader, dp_error *err)
{
    const dp_dataset_info *info = loader->info;
    int64_t samples = samples_of(loader, 0), elements;
    size_t x_bytes = 0, y_bytes = 0, slot_bytes, bytes;
    if (__builtin_mul_overflow(samples, info->elements, &elements) ||
        !aligned_product(elements, sizeof(float), &x_bytes) ||
        !aligned_product(samples, info->target_bytes, &y_bytes) ||
        __builtin_add_overflow(x_bytes, y_bytes, &slot_bytes) ||
        __builtin_mul_overflow(slot_bytes, (size_t)loader->slot_count, &bytes))
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: %d batches of %lld samples", loader->slot_count,
                       (long long)samples);
    DP_TRY(dp_calloc((size_t)loader->slot_count, sizeof *loader->slots, "a loader", &loader->slots, err));
    DP_TRY(allocate(loader, bytes, err));
    for (int i = 0; i < loader->slot_count; i++) {
        batch_slot *slot = &loader->slots[i];
        slot->x = (float *)(void *)(loader->memory + (size_t)i * slot_bytes);
        slot->y = loader->memory + (size_t)i * slot_bytes + x_bytes;
        slot->batch = (dp_batch){.x = slot->x, .y = slot->y, .slot = slot};
    }
    return DP_OK;
}

static dp_status make_tracks(dp_loader *loader, int workers, dp_error *err)
{
    enum { SPANS = 4096 };
    const dp_loader_config *c = &loader->config;
    const char *name = c->track_name ? c->track_name : "loader";
    DP_TRY(dp_calloc((size_t)workers, sizeof(dp_track *), "loader threads", &loader->tracks, err));
    for (int i = 0; i < workers; i++) {
        char numbered[DP_TRACK_NAME];
        snprintf(numbered, sizeof numbered, i ? "%s %d" : "%s", name, i + 1);
        DP_TRY(dp_track_create(c->trace, "host", numbered, SPANS, &loader->tracks[i], err));
    }
    return DP_OK;
}

static dp_status prepare(dp_loader *loader, int workers, dp_error *err)
{
    DP_TRY(make_slots(loader, err));
    if (loader->config.shuffle)
        DP_TRY(dp_calloc((size_t)loader->info->samples, sizeof *loader->order, "the order of an epoch",
                         &loader->order, err));
    DP_TRY(make_tracks(loader, workers, err));
    const dp_ahead_config ahead = {.name = "dp-loader",
                                   .threads = workers,
                                   .slots = loader->slot_count,
                                   .most_held = MAX_HANDED_OUT,
                                   .make = make_batch,
                                   .user = loader};
    return dp_ahead_create(&ahead, &loader->ahead, err);
}

dp_status dp_loader_create(const dp_loader_config *config, dp_loader **out, dp_error *err)
{
    *out = NULL;
    DP_TRY(check_config(config, err));
    dp_loader *loader;
    DP_TRY(dp_calloc(1, sizeof *loader, "a loader", &loader, err));
    loader->config = *config;
    loader->info = dp_dataset_info_of(config->dataset);
    loader->batches = loader->info->samples / config->batch_size;
    if (!config->drop_last && loader->info->samples % config->batch_size != 0)
        loader->batches++;
    int workers = config->workers < loader->batches ? config->workers : (int)loader->batches;
    loader->slot_count = workers + SPARE_SLOTS;
    dp_status status = prepare(loader, workers, err);
    if (status != DP_OK) {
        dp_loader_free(loader);
        return status;
    }
    *out = loader;
    return DP_OK;
}

void dp_loader_free(dp_loader *loader)
{
    if (!loader)
        return;
    dp_ahead_free(loader->ahead);
    if (loader->memory && loader->config.alloc)
        loader->config.release(loader->config.alloc_context, loader->memory);
    else
        dp_free(loader->memory);
    dp_free(loader->tracks);
    dp_free(loader->order);
    dp_free(loader->slots);
    dp_free(loader);
}

int64_t dp_loader_batches(const dp_loader *loader)
{
    return loader->batches;
}

/* ---- an epoch ---- */

dp_status dp_loader_start(dp_loader *loader, int64_t epoch, int64_t first_batch, dp_error *err)
{
    if (epoch < 0 || first_batch < 0 || first_batch > loader->batches)
        return dp_fail(err, DP_ERROR_USAGE, "cannot begin epoch %lld at batch %lld: it has %lld batches",
                       (long long)epoch, (long long)first_batch, (long long)loader->batches);
    DP_TRY(dp_ahead_stop(loader->ahead, err)); /* those that are being filled read the order */
    loader->epoch = epoch;
    if (loader->order)
        dp_order_of_epoch(loader->order, loader->info->samples, loader->config.seed, epoch);
    dp_ahead_start(loader->ahead, first_batch, loader->batches);
    return DP_OK;
}

dp_status dp_loader_next(dp_loader *loader, const dp_batch **out, dp_error *err)
{
    int64_t slot;
    *out = NULL;
    DP_TRY(dp_ahead_next(loader->ahead, &slot, err));
    if (slot >= 0)
        *out = &loader->slots[slot].batch;
    return DP_OK;
}

void dp_loader_release(dp_loader *loader, const dp_batch *batch)
{
    if (batch)
        dp_ahead_release(loader->ahead, (const batch_slot *)batch->slot - loader->slots);
}
