/* Python's pickle format as inert data. The reader executes nothing: a call of a function is kept as a call,
 * and a function that is not on the caller's list is refused by name, as is every opcode that state dicts do
 * not use. The opcodes are those that Python's own pickletools.py documents. Memory is linear in the pickle's
 * size, and nothing recurses. */
#ifndef DP_IO_PICKLE_H
#define DP_IO_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef enum dp_pickle_kind {
    DP_PICKLE_NONE,
    DP_PICKLE_BOOL,   /* number */
    DP_PICKLE_INT,    /* number */
    DP_PICKLE_BIG,    /* a whole number beyond 64 bits: text, its bytes from the lowest on */
    DP_PICKLE_FLOAT,  /* its value is of no use here */
    DP_PICKLE_TEXT,   /* text, not ended by a zero */
    DP_PICKLE_TUPLE,  /* items */
    DP_PICKLE_LIST,   /* items */
    DP_PICKLE_DICT,   /* items: key, value, key, value; the same key may come twice */
    DP_PICKLE_GLOBAL, /* text: the caller's own string for it */
    DP_PICKLE_CALL,   /* items: the global, its arguments (a tuple), and the state given afterwards or NULL */
    DP_PICKLE_REFERENCE, /* items: the persistent id of something outside */
} dp_pickle_kind;

typedef struct dp_pickle_value {
    dp_pickle_kind kind;
    uint32_t count; /* items, or bytes of text */
    uint32_t capacity;
    union {
        int64_t number;
        const char *text; /* in the pickle's bytes, which must outlive it */
        struct dp_pickle_value **items;
    };
} dp_pickle_value;

typedef struct dp_pickle dp_pickle;

/* Reads one pickle from the start of the bytes; *used says how long it was. `globals` lists what may be
 * named, as "module.name", NULL at the end; collections.OrderedDict among them becomes a dictionary.
 * DP_ERROR_IO says what is unsound or refused. Owner: the caller. */
dp_status dp_pickle_read(const void *bytes, size_t size, const char *const *globals, dp_pickle **out,
                         size_t *used, dp_error *err);
void dp_pickle_free(dp_pickle *pickle); /* NULL is fine */

const dp_pickle_value *dp_pickle_root(const dp_pickle *pickle);
/* Every value, in the order of their making. */
size_t dp_pickle_count(const dp_pickle *pickle);
const dp_pickle_value *dp_pickle_at(const dp_pickle *pickle, size_t index);

bool dp_pickle_is_text(const dp_pickle_value *value, const char *text);

#endif
