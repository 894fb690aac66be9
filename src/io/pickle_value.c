/* The values of a pickle: their memory, and looking at them. */
#include <string.h>

#include "base/memory.h"
#include "io/pickle_internal.h"

enum { BLOCK = 1024 };

dp_status dp_pickle_add(dp_pickle *p, dp_pickle_kind kind, dp_pickle_value **out, dp_error *err)
{
    *out = NULL;
    if (p->count == DP_PICKLE_MAX_VALUES)
        return dp_fail(err, DP_ERROR_IO, "the pickle holds more than %d values", DP_PICKLE_MAX_VALUES);
    if (p->count == p->block_count * BLOCK) {
        DP_TRY(dp_realloc(&p->blocks, p->block_count + 1, sizeof *p->blocks, "a pickle", err));
        DP_TRY(dp_calloc(BLOCK, sizeof **p->blocks, "a pickle", &p->blocks[p->block_count], err));
        p->block_count++;
    }
    *out = &p->blocks[p->count / BLOCK][p->count % BLOCK];
    (*out)->kind = kind;
    p->count++;
    return DP_OK;
}

void dp_pickle_free(dp_pickle *pickle)
{
    if (!pickle)
        return;
    for (size_t i = 0; i < pickle->count; i++) {
        dp_pickle_value *value = &pickle->blocks[i / BLOCK][i % BLOCK];
        if (value->capacity > 0)
            dp_free(value->items);
    }
    for (size_t i = 0; i < pickle->block_count; i++)
        dp_free(pickle->blocks[i]);
    dp_free(pickle->blocks);
    dp_free(pickle);
}

const dp_pickle_value *dp_pickle_root(const dp_pickle *pickle)
{
    return pickle->root;
}

size_t dp_pickle_count(const dp_pickle *pickle)
{
    return pickle->count;
}

const dp_pickle_value *dp_pickle_at(const dp_pickle *pickle, size_t index)
{
    return &pickle->blocks[index / BLOCK][index % BLOCK];
}

bool dp_pickle_is_text(const dp_pickle_value *value, const char *text)
{
    return value->kind == DP_PICKLE_TEXT && value->count == strlen(text) &&
           memcmp(value->text, text, value->count) == 0;
}
