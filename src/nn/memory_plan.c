#include "nn/memory_plan.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/memory.h"

static size_t align(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int by_size(const void *a, const void *b)
{
    const dp_block *x = *(dp_block *const *)a, *y = *(dp_block *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : x > y; /* a fixed order among equals */
}

static bool lifetimes_meet(const dp_block *a, const dp_block *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest offset at which `block` clashes with none of the placed ones: start at 0 and jump behind every
 * clash. */
static size_t lowest_fit(const dp_block *block, dp_block *const *placed, int count)
{
    size_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < count; i++) {
            const dp_block *other = placed[i];
            if (lifetimes_meet(block, other) && offset < other->offset + align(other->bytes) &&
                other->offset < offset + align(block->bytes)) {
                offset = other->offset + align(other->bytes);
                moved = true;
            }
        }
    }
    return offset;
}

dp_status dp_pack_blocks(dp_block *blocks, int count, size_t *total, dp_error *err)
{
    dp_block **order;
    DP_TRY(dp_calloc((size_t)count, sizeof(dp_block *), "a memory plan", &order, err));
    for (int i = 0; i < count; i++)
        order[i] = &blocks[i];
    qsort(order, (size_t)count, sizeof(dp_block *), by_size);
    *total = 0;
    for (int i = 0; i < count; i++) {
        order[i]->offset = order[i]->bytes ? lowest_fit(order[i], order, i) : 0;
        size_t end = order[i]->offset + align(order[i]->bytes);
        if (end > *total)
            *total = end;
    }
    dp_free(order);
    return DP_OK;
}
