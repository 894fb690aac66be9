/* A thread takes the next item that nobody has begun and any free slot, makes the item there without the lock
 * and marks the slot ready; the consumer waits for the slot with the item that is next. Because items are
 * begun in order, the one that the consumer waits for always has a slot, however far ahead the others are.
 * One mutex guards everything but what lies in a slot that is being filled or is held; whoever has to wait,
 * blocks. */
#include "base/ahead.h"

#include <pthread.h>

#include "base/memory.h"
#include "base/thread.h"

typedef enum slot_state { SLOT_FREE, SLOT_FILLING, SLOT_READY, SLOT_HELD } slot_state;

typedef struct ahead_slot {
    int64_t item;
    slot_state state;
    dp_status status; /* of the making */
    dp_error err;
} ahead_slot;

struct dp_ahead {
    dp_ahead_config config;
    ahead_slot *slots;
    pthread_t *threads;
    int thread_count; /* that run */

    pthread_mutex_t mutex;
    pthread_cond_t work;    /* for the threads: an item may be begun, or the end */
    pthread_cond_t changed; /* for the consumer: a slot has been filled */
    int numbered;           /* threads that have their number */
    int64_t next_begun;     /* the first item that no thread has begun; `end` if there is none */
    int64_t next_taken, end;
    int64_t cost; /* of the items that are begun and not released */
    int64_t filling, held;
    bool closing;
};

/* ---- threads; all with the lock ---- */

static int64_t cost_of(const dp_ahead *a, int64_t item)
{
    return a->config.cost ? a->config.cost(a->config.user, item) : 0;
}

static ahead_slot *find_slot(dp_ahead *a, slot_state state, int64_t item)
{
    for (int64_t i = 0; i < a->config.slots; i++)
        if (a->slots[i].state == state && (state == SLOT_FREE || a->slots[i].item == item))
            return &a->slots[i];
    return NULL;
}

static bool affordable(const dp_ahead *a)
{
    return a->next_begun == a->next_taken || a->cost + cost_of(a, a->next_begun) <= a->config.most_cost;
}

/* A slot for the next item; NULL: there is no item, no slot, or no room for it yet. */
static ahead_slot *slot_to_fill(dp_ahead *a)
{
    if (a->next_begun == a->end || !affordable(a))
        return NULL;
    return find_slot(a, SLOT_FREE, 0);
}

/* Waits for an item to begin; NULL at the end. */
static ahead_slot *begin_item(dp_ahead *a)
{
    ahead_slot *slot = NULL;
    while (!a->closing && !(slot = slot_to_fill(a)))
        pthread_cond_wait(&a->work, &a->mutex);
    if (a->closing)
        return NULL;
    slot->state = SLOT_FILLING;
    slot->item = a->next_begun++;
    a->cost += cost_of(a, slot->item);
    a->filling++;
    return slot;
}

static void *work(void *argument)
{
    dp_ahead *a = argument;
    ahead_slot *slot;
    pthread_mutex_lock(&a->mutex);
    int number = a->numbered++;
    while ((slot = begin_item(a))) {
        pthread_mutex_unlock(&a->mutex);
        dp_status status = a->config.make(a->config.user, number, slot->item, slot - a->slots, &slot->err);
        pthread_mutex_lock(&a->mutex);
        slot->status = status;
        slot->state = SLOT_READY;
        a->filling--;
        pthread_cond_signal(&a->changed);
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

/* ---- making and freeing ---- */

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

static dp_status prepare(dp_ahead *a, dp_error *err)
{
    const dp_ahead_config *c = &a->config;
    DP_TRY(dp_calloc((size_t)c->slots, sizeof *a->slots, "what is made ahead", &a->slots, err));
    DP_TRY(dp_calloc((size_t)c->threads, sizeof *a->threads, "threads", &a->threads, err));
    for (; a->thread_count < c->threads; a->thread_count++)
        DP_TRY(dp_thread_start(&a->threads[a->thread_count], c->name, work, a, err));
    return DP_OK;
}

dp_status dp_ahead_create(const dp_ahead_config *config, dp_ahead **out, dp_error *err)
{
    dp_ahead *a;
    *out = NULL;
    DP_TRY(dp_calloc(1, sizeof *a, "what is made ahead", &a, err));
    a->config = *config;
    dp_status status = init_locks(a, err);
    if (status != DP_OK) {
        dp_free(a);
        return status;
    }
    status = prepare(a, err);
    if (status != DP_OK) {
        dp_ahead_free(a);
        return status;
    }
    *out = a;
    return DP_OK;
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
    pthread_cond_destroy(&a->changed);
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->mutex);
    dp_free(a->threads);
    dp_free(a->slots);
    dp_free(a);
}

/* ---- the consumer ---- */

/* With the lock. */
static void free_again(dp_ahead *a, ahead_slot *slot)
{
    slot->state = SLOT_FREE;
    a->cost -= cost_of(a, slot->item);
    pthread_cond_broadcast(&a->work); /* what one item took up may be room for several */
}

dp_status dp_ahead_stop(dp_ahead *a, dp_error *err)
{
    pthread_mutex_lock(&a->mutex);
    int64_t held = a->held;
    if (held == 0) {
        a->next_begun = a->next_taken = a->end = 0;
        while (a->filling > 0)
            pthread_cond_wait(&a->changed, &a->mutex);
        for (int64_t i = 0; i < a->config.slots; i++)
            a->slots[i].state = SLOT_FREE;
        a->cost = 0;
    }
    pthread_mutex_unlock(&a->mutex);
    return held == 0 ? DP_OK
                     : dp_fail(err, DP_ERROR_INTERNAL, "%lld of what was taken ha%s not been released",
                               (long long)held, held == 1 ? "s" : "ve");
}

void dp_ahead_start(dp_ahead *a, int64_t first, int64_t end)
{
    pthread_mutex_lock(&a->mutex);
    a->next_begun = a->next_taken = first;
    a->end = end;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->mutex);
}

void dp_ahead_extend(dp_ahead *a, int64_t end)
{
    pthread_mutex_lock(&a->mutex);
    a->end = end;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->mutex);
}

bool dp_ahead_has_next(dp_ahead *a)
{
    pthread_mutex_lock(&a->mutex);
    bool has = find_slot(a, SLOT_READY, a->next_taken) != NULL;
    pthread_mutex_unlock(&a->mutex);
    return has;
}

/* The next item's slot, filled or failed. With the lock. */
static ahead_slot *wait_for_next(dp_ahead *a)
{
    ahead_slot *slot;
    while (!(slot = find_slot(a, SLOT_READY, a->next_taken)))
        pthread_cond_wait(&a->changed, &a->mutex);
    if (++a->next_taken == a->next_begun && a->config.cost)
        pthread_cond_broadcast(&a->work); /* the next one may be begun now, whatever its cost */
    return slot;
}

static dp_status take_next(dp_ahead *a, int64_t *out, dp_error *err)
{
    *out = -1;
    if (a->held == a->config.most_held) /* waiting on could end with every slot held */
        return dp_fail(err, DP_ERROR_INTERNAL, "one more was asked for while %lld are held",
                       (long long)a->held);
    if (a->next_taken == a->end)
        return DP_OK;
    ahead_slot *slot = wait_for_next(a);
    if (slot->status != DP_OK) {
        if (err)
            *err = slot->err;
        free_again(a, slot);
        return slot->status;
    }
    slot->state = SLOT_HELD;
    a->held++;
    *out = slot - a->slots;
    return DP_OK;
}

dp_status dp_ahead_next(dp_ahead *a, int64_t *slot, dp_error *err)
{
    pthread_mutex_lock(&a->mutex);
    dp_status status = take_next(a, slot, err);
    pthread_mutex_unlock(&a->mutex);
    return status;
}

void dp_ahead_release(dp_ahead *a, int64_t slot)
{
    pthread_mutex_lock(&a->mutex);
    a->held--;
    free_again(a, &a->slots[slot]);
    pthread_mutex_unlock(&a->mutex);
}
