/* How much of the masks is positive. */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/thread.h"
#include "dptrain/data.h"

typedef struct survey {
    const dp_dataset *dataset;
    double *share; /* by sample, so that their sum has one order */
    _Atomic int64_t next;
    _Atomic int failed;
    pthread_mutex_t mutex; /* of err and status */
    dp_error err;
    dp_status status;
} survey;

static dp_status measure(survey *s, float *mask, int64_t index, dp_error *err)
{
    int64_t elements = dp_dataset_info_of(s->dataset)->target_elements, positive = 0;
    DP_TRY(dp_dataset_read(s->dataset, index, -1, NULL, mask, err));
    for (int64_t e = 0; e < elements; e++)
        positive += mask[e] > 0.5f;
    s->share[index] = (double)positive / (double)elements;
    return DP_OK;
}

static void *work(void *argument)
{
    survey *s = argument;
    const dp_dataset_info *d = dp_dataset_info_of(s->dataset);
    dp_error err;
    float *mask;
    dp_status status = dp_aligned_alloc(d->target_bytes, "a mask", &mask, &err);
    while (status == DP_OK && !s->failed) {
        int64_t index = atomic_fetch_add(&s->next, 1);
        if (index >= d->samples)
            break;
        status = measure(s, mask, index, &err);
    }
    if (status != DP_OK) {
        pthread_mutex_lock(&s->mutex);
        s->err = err;
        s->status = status;
        pthread_mutex_unlock(&s->mutex);
        s->failed = 1;
    }
    dp_free(mask);
    return NULL;
}

static dp_status run(survey *s, int workers, pthread_t *threads, dp_error *err)
{
    int started = 0;
    dp_status status = DP_OK;
    while (started < workers && status == DP_OK) {
        status = dp_thread_start(&threads[started], "dp-survey", work, s, err);
        started += status == DP_OK;
    }
    if (status != DP_OK)
        s->failed = 1;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (status == DP_OK && s->status != DP_OK) {
        status = s->status;
        if (err)
            *err = s->err;
    }
    return status;
}

dp_status dp_dataset_positive_share(const dp_dataset *dataset, int workers, double *out, dp_error *err)
{
    const dp_dataset_info *d = dp_dataset_info_of(dataset);
    if (d->target == DP_TARGET_LABELS || workers < 1)
        return dp_fail(err, DP_ERROR_USAGE, "the positive share is of masks, by at least one thread");
    survey s = {.dataset = dataset};
    pthread_t *threads = NULL;
    dp_status status = dp_calloc((size_t)d->samples, sizeof *s.share, "shares", &s.share, err);
    if (status == DP_OK)
        status = dp_calloc((size_t)workers, sizeof *threads, "threads", &threads, err);
    if (status == DP_OK && pthread_mutex_init(&s.mutex, NULL) != 0)
        status = dp_fail(err, DP_ERROR_MEMORY, "cannot make a mutex");
    if (status == DP_OK) {
        status = run(&s, workers, threads, err);
        pthread_mutex_destroy(&s.mutex);
    }
    double sum = 0;
    for (int64_t i = 0; status == DP_OK && i < d->samples; i++)
        sum += s.share[i];
    *out = sum / (double)d->samples;
    dp_free(threads);
    dp_free(s.share);
    return status;
}
