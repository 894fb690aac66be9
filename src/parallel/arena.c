#include "parallel/arena.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

/* The first bucket that backward fills is the last of the list and should be small, so that summing can begin
 * early; the others are as large as keeps the cost of a hand-over small. The first that forward needs is
 * small for the same reason. Sizes as in DistributedDataParallel's reducer (first bucket 1 MiB, then 25),
 * tuned on CPU devices. */
enum { SMALL_BUCKET = 1 << 20, LARGE_BUCKET = 10 << 20 }; /* bytes */

static dp_status mark_trainable(const dp_model *model, const char *const *freeze, int freeze_count,
                                dp_arena *arena, dp_error *err)
{
    for (int p = 0; p < arena->param_count; p++)
        arena->trainable[p] = model->params[p].info.used;
    for (int f = 0; f < freeze_count; f++) {
        bool matched = false;
        for (int p = 0; p < arena->param_count; p++)
            if (dp_pattern_matches(freeze[f], model->params[p].name)) {
                arena->trainable[p] = false;
                matched = true;
            }
        if (!matched)
            return dp_fail(err, DP_ERROR_USAGE,
                           "freeze pattern '%s' matches no parameter of model '%s' (the first is '%s')",
                           freeze[f], model->name, arena->param_count ? model->params[0].name : "none");
    }
    for (int p = 0; p < arena->param_count; p++)
        if (arena->trainable[p])
            return DP_OK;
    return dp_fail(err, DP_ERROR_USAGE, "nothing is left to train: every parameter of model '%s' is frozen",
                   model->name);
}

static int64_t aligned(int64_t elements)
{
    return (elements + 15) / 16 * 16;
}

/* Of the bucket that is open. */
static size_t limit_of(const dp_arena *arena, size_t bucket_bytes)
{
    size_t limit = arena->bucket_count <= 1 ? SMALL_BUCKET : LARGE_BUCKET;
    return bucket_bytes ? bucket_bytes : limit;
}

/* Adds one step's parameters of the wanted kind behind `end` and extends the open bucket, or opens the next.
 */
static void place_step(const dp_model *model, dp_arena *arena, int step, bool trainable, size_t bucket_bytes,
                       int64_t *end)
{
    const dp_node *node = &model->program[step];
    int64_t begin = *end;
    for (int i = 0; i < node->params; i++)
        if (arena->trainable[node->param[i]] == trainable) {
            arena->offset[node->param[i]] = *end;
            *end = aligned(*end + model->params[node->param[i]].info.elements);
        }
    if (*end == begin)
        return;
    dp_bucket *open = arena->bucket_count ? &arena->buckets[arena->bucket_count - 1] : NULL;
    if (open && open->trainable == trainable &&
        (size_t)(*end - open->begin) * sizeof(float) <= limit_of(arena, bucket_bytes))
        open->end = *end;
    else
        arena->buckets[arena->bucket_count++] =
            (dp_bucket){.begin = begin, .end = *end, .first_step = step, .trainable = trainable};
}

static int by_first_step(const void *a, const void *b)
{
    const dp_bucket *x = a, *y = b;
    if (x->first_step != y->first_step)
        return x->first_step < y->first_step ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void lay_out(const dp_model *model, size_t bucket_bytes, dp_arena *arena)
{
    int64_t end = 0;
    for (int s = 0; s < model->program_count; s++)
        place_step(model, arena, s, true, bucket_bytes, &end);
    arena->trainable_elements = end;
    for (int s = 0; s < model->program_count; s++)
        place_step(model, arena, s, false, bucket_bytes, &end);
    arena->used_elements = end;
    for (int p = 0; p < arena->param_count; p++)
        if (!model->params[p].info.used) {
            arena->offset[p] = end;
            end = aligned(end + model->params[p].info.elements);
        }
    arena->elements = end;
    for (int b = 0; b < arena->bucket_count; b++) {
        int64_t size = arena->buckets[b].end - arena->buckets[b].begin;
        if (arena->buckets[b].trainable && size > arena->largest_bucket)
            arena->largest_bucket = size;
    }
    qsort(arena->buckets, (size_t)arena->bucket_count, sizeof *arena->buckets, by_first_step);
}

dp_status dp_arena_create(const dp_model *model, const char *const *freeze, int freeze_count,
                          size_t bucket_bytes, dp_arena *out, dp_error *err)
{
    memset(out, 0, sizeof *out);
    out->param_count = model->param_count;
    size_t params = (size_t)model->param_count, steps = (size_t)model->program_count;
    dp_status status;
    if ((status = dp_calloc(params, sizeof *out->offset, "the arenas", &out->offset, err)) != DP_OK ||
        (status = dp_calloc(params, sizeof *out->trainable, "the arenas", &out->trainable, err)) != DP_OK ||
        (status = dp_calloc(2 * steps, sizeof *out->buckets, "the buckets", &out->buckets, err)) != DP_OK ||
        (status = mark_trainable(model, freeze, freeze_count, out, err)) != DP_OK) {
        dp_arena_clear(out);
        return status;
    }
    lay_out(model, bucket_bytes, out);
    return DP_OK;
}

void dp_arena_clear(dp_arena *arena)
{
    dp_free(arena->offset);
    dp_free(arena->trainable);
    dp_free(arena->buckets);
    memset(arena, 0, sizeof *arena);
}
