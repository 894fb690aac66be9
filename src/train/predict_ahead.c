/* Pictures decoded ahead of the devices by loader threads, handed out in order.
 *
 * A ring of slots: picture k lies in slot k modulo their number. A thread takes the next picture that nobody
 * has begun as soon as its slot is free and the pixels that wait are not too many; the picture that the
 * consumer waits for may always be begun, so the ring cannot come to a standstill. One mutex guards
 * everything but a slot that is being filled. */
#include "base/memory.h"
#include "base/thread.h"
#include "train/predict.h"

/* Decoded pixels that may wait: one picture of the largest size that is read. */
static const int64_t most_pixels = DP_IMAGE_MAX_PIXELS;

typedef struct ahead_slot {
    bool ready;
    dp_ready content;
    dp_status status;
    dp_error err;
} ahead_slot;

struct dp_ahead {
    const dp_predictor *predictor;
    const dp_input *inputs;
    int64_t count;
    ahead_slot *slots;
    int64_t slot_count;
    pthread_t *threads;
    int thread_count; /* that run */

    pthread_mutex_t mutex;
    pthread_cond_t work;    /* for the threads: a picture may be begun, or the end */
    pthread_cond_t changed; /* for the consumer: a slot is ready */
    int64_t begun, taken;   /* pictures */
    int64_t pixels;         /* of those that are begun and not taken */
    bool closing;
};

/* With the lock. */
static bool may_begin(const dp_ahead *a)
{
    return a->begun < a->count && a->begun - a->taken < a->slot_count &&
           (a->begun == a->taken || a->pixels + a->inputs[a->begun].pixels <= most_pixels);
}

static void *work(void *argument)
{
    dp_ahead *a = argument;
    pthread_mutex_lock(&a->mutex);
    for (;;) {
        while (!a->closing && a->begun < a->count && !may_begin(a))
            pthread_cond_wait(&a->work, &a->mutex);
        if (a->closing || a->begun == a->count)
            break;
        int64_t k = a->begun++;
        a->pixels += a->inputs[k].pixels;
        pthread_mutex_unlock(&a->mutex);
        ahead_slot *slot = &a->slots[k % a->slot_count];
        slot->status = dp_predict_prepare(a->predictor, &a->inputs[k], &slot->content, &slot->err);
        pthread_mutex_lock(&a->mutex);
        slot->ready = true;
        pthread_cond_signal(&a->changed);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

static dp_status init_locks(dp_ahead *a, dp_error *err)
{
    if (pthread_mutex_init(&a->mutex, NULL) != 0)
        return dp_fail(err, DP_ERROR_MEMORY, "cannot make a mutex");
    if (pthread_cond_init(&a->work, NULL) != 0) {
        pthread_mutex_destroy(&a->mutex);
        return dp_fail(err, DP_ERROR_MEMORY, "cannot make a condition variable");
    }
    if (pthread_cond_init(&a->changed, NULL) != 0) {
        pthread_cond_destroy(&a->work);
        pthread_mutex_destroy(&a->mutex);
        return dp_fail(err, DP_ERROR_MEMORY, "cannot make a condition variable");
    }
    return DP_OK;
}

static dp_status prepare(dp_ahead *a, int workers, dp_error *err)
{
    DP_TRY(dp_calloc((size_t)a->slot_count, sizeof *a->slots, "decoded pictures", &a->slots, err));
    DP_TRY(dp_calloc((size_t)workers, sizeof *a->threads, "loader threads", &a->threads, err));
    for (; a->thread_count < workers; a->thread_count++)
        DP_TRY(dp_thread_start(&a->threads[a->thread_count], "dp-loader", work, a, err));
    return DP_OK;
}

dp_status dp_ahead_create(const dp_predictor *predictor, const dp_input *inputs, int64_t count,
                          dp_ahead **out, dp_error *err)
{
    int workers = predictor->config->workers;
    *out = NULL;
    if (workers < 1)
        return dp_fail(err, DP_ERROR_USAGE, "pictures are decoded by at least one thread");
    dp_ahead *a;
    DP_TRY(dp_calloc(1, sizeof *a, "decoded pictures", &a, err));
    a->predictor = predictor;
    a->inputs = inputs;
    a->count = count;
    workers = workers < count ? workers : (int)count;
    /* A batch that waits, and a picture that each thread is at. */
    a->slot_count = predictor->config->batch_size + workers;
    a->slot_count = a->slot_count < count ? a->slot_count : count + 1;
    dp_status status = init_locks(a, err);
    if (status != DP_OK) {
        dp_free(a);
        return status;
    }
    status = prepare(a, workers, err);
    if (status != DP_OK) {
        dp_ahead_free(a);
        return status;
    }
    *out = a;
    return DP_OK;
}

dp_status dp_ahead_next(dp_ahead *a, dp_ready *out, dp_error *err)
{
    ahead_slot *slot = &a->slots[a->taken % a->slot_count];
    pthread_mutex_lock(&a->mutex);
    while (!slot->ready)
        pthread_cond_wait(&a->changed, &a->mutex);
    dp_status status = slot->status;
    if (status != DP_OK && err)
        *err = slot->err;
    *out = slot->content;
    slot->content = (dp_ready){0};
    slot->ready = false;
    a->pixels -= a->inputs[a->taken++].pixels;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->mutex);
    return status;
}

void dp_ready_clear(dp_ready *ready)
{
    dp_image_clear(&ready->image);
    dp_free(ready->sample);
    *ready = (dp_ready){0};
}

void dp_ahead_free(dp_ahead *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->mutex);
    a->closing = true;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->mutex);
    for (int i = 0; i < a->thread_count; i++)
        pthread_join(a->threads[i], NULL);
    for (int64_t i = 0; a->slots && i < a->slot_count; i++)
        dp_ready_clear(&a->slots[i].content);
    pthread_cond_destroy(&a->changed);
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->mutex);
    dp_free(a->threads);
    dp_free(a->slots);
    dp_free(a);
}
