/* Batches prepared ahead by worker threads, delivered in order.
 *
 * A ring of slots holds the batches. A worker takes the next batch that nobody has begun and any free slot,
 * fills the slot without the lock and marks it ready; the consumer waits for the slot with the batch that is
 * next. Because batches are begun in order, the one that the consumer waits for always has a slot, however
 * far ahead the others are. One mutex guards everything but the contents of a slot that is being filled or is
 * handed out; whoever has to wait, blocks. */
#include "dptrain/data.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread.h"
#include "base/tracks.h"
#include "data/order.h"

enum {
    MAX_HANDED_OUT = 2,
    SPARE_SLOTS = MAX_HANDED_OUT + 1, /* beyond one a worker: those with the consumer, and one ready */
    ALIGNMENT = 64,
};

typedef enum slot_state { SLOT_FREE, SLOT_FILLING, SLOT_READY, SLOT_HANDED_OUT } slot_state;

typedef struct batch_slot {
    dp_batch batch;
    float *x;
    char *y;
    slot_state state;
    dp_status status; /* of the filling */
    dp_error err;
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

    pthread_t *threads;
    int thread_count;  /* that run */
    dp_track **tracks; /* in a trace: one a thread */
    int track_count;   /* that threads have taken */

    pthread_mutex_t mutex;
    pthread_cond_t work;    /* for workers: a batch to begin and a slot for it, or the end */
    pthread_cond_t changed; /* for the consumer: a slot has been filled */
    int64_t next_begun;     /* the first batch that no worker has begun; `batches` if there is none */
    int64_t next_delivered;
    int filling, handed_out; /* slots in these states */
    bool closing;
};

/* ---- workers ---- */

static int64_t samples_of(const dp_loader *loader, int64_t batch)
{
    int64_t left = loader->info->samples - batch * loader->config.batch_size;
    return left < loader->config.batch_size ? left : loader->config.batch_size;
}

static dp_status fill(const dp_loader *loader, batch_slot *slot)
{
    const dp_dataset_info *info = loader->info;
    int64_t first = slot->batch.index * loader->config.batch_size;
    for (int64_t i = 0; i < slot->batch.samples; i++) {
        int64_t sample = loader->order ? loader->order[first + i] : first + i;
        DP_TRY(dp_dataset_read(loader->config.dataset, sample, loader->epoch, slot->x + i * info->elements,
                               slot->y + (size_t)i * info->target_bytes, &slot->err));
    }
    return DP_OK;
}

static batch_slot *free_slot(dp_loader *loader)
{
    for (int i = 0; i < loader->slot_count; i++) {
        if (loader->slots[i].state == SLOT_FREE)
            return &loader->slots[i];
    }
    return NULL;
}

/* Waits for a batch to begin; NULL at the end. With the lock. */
static batch_slot *begin_batch(dp_loader *loader)
{
    batch_slot *slot = NULL;
    while (!loader->closing && (loader->next_begun == loader->batches || !(slot = free_slot(loader))))
        pthread_cond_wait(&loader->work, &loader->mutex);
    if (loader->closing)
        return NULL;
    slot->state = SLOT_FILLING;
    slot->batch.index = loader->next_begun++;
    slot->batch.samples = samples_of(loader, slot->batch.index);
    loader->filling++;
    return slot;
}

static void *work(void *argument)
{
    dp_loader *loader = argument;
    batch_slot *slot;
    pthread_mutex_lock(&loader->mutex);
    dp_track *track = loader->tracks[loader->track_count++];
    while ((slot = begin_batch(loader))) {
        pthread_mutex_unlock(&loader->mutex);
        dp_track_push(track, "read batch", NULL, 0, -1);
        dp_status status = fill(loader, slot);
        dp_track_pop(track);
        pthread_mutex_lock(&loader->mutex);
        slot->status = status;
        slot->state = SLOT_READY;
        loader->filling--;
        pthread_cond_signal(&loader->changed);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
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

static dp_status init_locks(dp_loader *loader, dp_error *err)
{
    if (pthread_mutex_init(&loader->mutex, NULL) != 0)
        return dp_fail(err, DP_ERROR_MEMORY, "cannot make a mutex");
    if (pthread_cond_init(&loader->work, NULL) != 0) {
        pthread_mutex_destroy(&loader->mutex);
        return dp_fail(err, DP_ERROR_MEMORY, "cannot make a condition variable");
    }
    if (pthread_cond_init(&loader->changed, NULL) != 0) {
        pthread_cond_destroy(&loader->work);
        pthread_mutex_destroy(&loader->mutex);
        return dp_fail(err, DP_ERROR_MEMORY, "cannot make a condition variable");
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
    DP_TRY(dp_calloc((size_t)workers, sizeof *loader->threads, "loader threads", &loader->threads, err));
    for (; loader->thread_count < workers; loader->thread_count++)
        DP_TRY(dp_thread_start(&loader->threads[loader->thread_count], "dp-loader", work, loader, err));
    return DP_OK;
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
    loader->next_begun = loader->next_delivered = loader->batches; /* nothing before the first start */
    int workers = config->workers < loader->batches ? config->workers : (int)loader->batches;
    loader->slot_count = workers + SPARE_SLOTS;
    dp_status status = init_locks(loader, err);
    if (status != DP_OK) {
        dp_free(loader);
        return status;
    }
    status = prepare(loader, workers, err);
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
    pthread_mutex_lock(&loader->mutex);
    loader->closing = true;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    for (int i = 0; i < loader->thread_count; i++)
        pthread_join(loader->threads[i], NULL);
    pthread_cond_destroy(&loader->changed);
    pthread_cond_destroy(&loader->work);
    pthread_mutex_destroy(&loader->mutex);
    if (loader->memory && loader->config.alloc)
        loader->config.release(loader->config.alloc_context, loader->memory);
    else
        dp_free(loader->memory);
    dp_free(loader->threads);
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

/* Lets no batch begin, waits for those that are being filled (they read the order), and drops all. */
static void quiesce(dp_loader *loader)
{
    loader->next_begun = loader->next_delivered = loader->batches;
    while (loader->filling > 0)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    for (int i = 0; i < loader->slot_count; i++)
        loader->slots[i].state = SLOT_FREE;
}

dp_status dp_loader_start(dp_loader *loader, int64_t epoch, int64_t first_batch, dp_error *err)
{
    if (epoch < 0 || first_batch < 0 || first_batch > loader->batches)
        return dp_fail(err, DP_ERROR_USAGE, "cannot begin epoch %lld at batch %lld: it has %lld batches",
                       (long long)epoch, (long long)first_batch, (long long)loader->batches);
    pthread_mutex_lock(&loader->mutex);
    if (loader->handed_out > 0) {
        int held = loader->handed_out;
        pthread_mutex_unlock(&loader->mutex);
        return dp_fail(err, DP_ERROR_INTERNAL, "an epoch begins while %d batch%s not been released", held,
                       held == 1 ? " has" : "es have");
    }
    quiesce(loader);
    loader->epoch = epoch;
    if (loader->order)
        dp_order_of_epoch(loader->order, loader->info->samples, loader->config.seed, epoch);
    loader->next_begun = loader->next_delivered = first_batch;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    return DP_OK;
}

static batch_slot *ready_slot(dp_loader *loader)
{
    for (int i = 0; i < loader->slot_count; i++) {
        if (loader->slots[i].state == SLOT_READY && loader->slots[i].batch.index == loader->next_delivered)
            return &loader->slots[i];
    }
    return NULL;
}

/* The next batch as a slot, ready or failed; NULL after the last. With the lock. */
static batch_slot *wait_for_next(dp_loader *loader)
{
    batch_slot *slot;
    if (loader->next_delivered == loader->batches)
        return NULL;
    while (!(slot = ready_slot(loader)))
        pthread_cond_wait(&loader->changed, &loader->mutex);
    loader->next_delivered++;
    return slot;
}

static void free_again(dp_loader *loader, batch_slot *slot)
{
    slot->state = SLOT_FREE;
    pthread_cond_signal(&loader->work);
}

dp_status dp_loader_next(dp_loader *loader, const dp_batch **out, dp_error *err)
{
    dp_status status = DP_OK;
    *out = NULL;
    pthread_mutex_lock(&loader->mutex);
    if (loader->handed_out == MAX_HANDED_OUT) { /* waiting on would end with every slot held */
        pthread_mutex_unlock(&loader->mutex);
        return dp_fail(err, DP_ERROR_INTERNAL, "a batch was asked for while %d are held", MAX_HANDED_OUT);
    }
    batch_slot *slot = wait_for_next(loader);
    if (slot && slot->status == DP_OK) {
        slot->state = SLOT_HANDED_OUT;
        loader->handed_out++;
        *out = &slot->batch;
    } else if (slot) {
        status = slot->status;
        if (err)
            *err = slot->err;
        dp_error_prefix(err, "batch %lld", (long long)slot->batch.index);
        free_again(loader, slot);
    }
    pthread_mutex_unlock(&loader->mutex);
    return status;
}

void dp_loader_release(dp_loader *loader, const dp_batch *batch)
{
    if (!batch)
        return;
    pthread_mutex_lock(&loader->mutex);
    loader->handed_out--;
    free_again(loader, batch->slot);
    pthread_mutex_unlock(&loader->mutex);
}
