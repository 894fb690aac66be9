#include "io/pickle.h"

#include <string.h>

#include "base/memory.h"
#include "io/pickle_internal.h"

enum {
    MAX_BYTES = 1 << 26, /* a state dict of 100,000 tensors needs a quarter of it */
    MAX_ITEMS = 1 << 22, /* in all containers */
    MAX_MARKS = 256,     /* open containers */
};

typedef struct reader {
    dp_pickle *pickle;
    const unsigned char *bytes;
    size_t size, at;
    const char *const *globals;
    dp_pickle_value **stack;
    size_t height, room;
    size_t marks[MAX_MARKS]; /* heights */
    int mark_count;
    dp_pickle_value **memo;
    size_t memo_room, memo_count;
    size_t items; /* in all containers */
    bool stopped;
} reader;

/* ---- bytes ---- */

static dp_status truncated(const reader *r, dp_error *err)
{
    return dp_fail(err, DP_ERROR_IO, "the pickle ends after %zu bytes in the middle of a value", r->size);
}

/* The next n bytes. */
static dp_status take(reader *r, size_t n, const unsigned char **out, dp_error *err)
{
    *out = r->bytes + r->at;
    if (n > r->size - r->at)
        return truncated(r, err);
    r->at += n;
    return DP_OK;
}

/* A little-endian number of n bytes, n at most 8. */
static dp_status take_number(reader *r, size_t n, uint64_t *out, dp_error *err)
{
    const unsigned char *bytes;
    DP_TRY(take(r, n, &bytes, err));
    *out = 0;
    for (size_t i = n; i-- > 0;)
        *out = *out << 8 | bytes[i];
    return DP_OK;
}

static dp_status take_line(reader *r, const char **text, size_t *length, dp_error *err)
{
    const unsigned char *begin = r->bytes + r->at, *end = memchr(begin, '\n', r->size - r->at);
    *text = (const char *)begin;
    *length = end ? (size_t)(end - begin) : 0;
    if (!end)
        return truncated(r, err);
    r->at += *length + 1;
    return DP_OK;
}

/* ---- values and the stack ---- */

static dp_status push(reader *r, dp_pickle_value *value, dp_error *err)
{
    if (r->height == r->room) {
        size_t room = 2 * r->room;
        DP_TRY(dp_realloc(&r->stack, room, sizeof *r->stack, "a pickle", err));
        r->room = room;
    }
    r->stack[r->height++] = value;
    return DP_OK;
}

static dp_status push_new(reader *r, dp_pickle_kind kind, dp_pickle_value **out, dp_error *err)
{
    DP_TRY(dp_pickle_add(r->pickle, kind, out, err));
    return push(r, *out, err);
}

static dp_status unsound(const char *what, dp_error *err)
{
    return dp_fail(err, DP_ERROR_IO, "the pickle is unsound: %s", what);
}

/* The n topmost values above the last mark leave the stack, where they stay readable until the next push. */
static dp_status pop(reader *r, size_t n, dp_pickle_value ***out, dp_error *err)
{
    size_t floor = r->mark_count ? r->marks[r->mark_count - 1] : 0;
    *out = NULL;
    if (r->height - floor < n)
        return unsound("its stack runs empty", err);
    r->height -= n;
    *out = r->stack + r->height;
    return DP_OK;
}

/* All that lies above the last mark, which goes. */
static dp_status pop_mark(reader *r, dp_pickle_value ***out, size_t *n, dp_error *err)
{
    *out = NULL;
    *n = 0;
    if (r->mark_count == 0)
        return unsound("a mark is missing", err);
    size_t height = r->marks[--r->mark_count];
    *n = r->height - height;
    r->height = height;
    *out = r->stack + height;
    return DP_OK;
}

static dp_status top(reader *r, dp_pickle_value **out, dp_error *err)
{
    dp_pickle_value **at;
    DP_TRY(pop(r, 1, &at, err));
    r->height++;
    *out = *at;
    return DP_OK;
}

/* One list may be handed to many calls: what all values hold together is bounded. */
static dp_status append(reader *r, dp_pickle_value *to, dp_pickle_value *const *items, size_t n,
                        dp_error *err)
{
    if (n == 0)
        return DP_OK;
    if (n > MAX_ITEMS - r->items)
        return dp_fail(err, DP_ERROR_IO, "the pickle holds more than %d items", MAX_ITEMS);
    r->items += n;
    if (to->capacity - to->count < n) {
        size_t room = to->count + n > 2 * (size_t)to->capacity ? to->count + n : 2 * (size_t)to->capacity;
        DP_TRY(dp_realloc(&to->items, room, sizeof *to->items, "a pickle", err));
        to->capacity = (uint32_t)room;
    }
    memcpy(to->items + to->count, items, n * sizeof *items);
    to->count += (uint32_t)n;
    return DP_OK;
}

/* Replaces the n values at `items`, which have left the stack, by one that holds them. */
static dp_status gather(reader *r, dp_pickle_kind kind, dp_pickle_value **items, size_t n, dp_error *err)
{
    dp_pickle_value *value;
    DP_TRY(dp_pickle_add(r->pickle, kind, &value, err));
    DP_TRY(append(r, value, items, n, err));
    return push(r, value, err);
}

/* ---- opcodes ---- */

static dp_status push_int(reader *r, dp_pickle_kind kind, int64_t number, dp_error *err)
{
    dp_pickle_value *value;
    DP_TRY(push_new(r, kind, &value, err));
    value->number = number;
    return DP_OK;
}

static dp_status read_int(reader *r, size_t width, dp_error *err)
{
    uint64_t number;
    DP_TRY(take_number(r, width, &number, err));
    return push_int(r, DP_PICKLE_INT, width == 4 ? (int32_t)(uint32_t)number : (int64_t)number, err);
}

/* What follows a length of `width` bytes. */
static dp_status take_counted(reader *r, size_t width, const unsigned char **out, size_t *length,
                              dp_error *err)
{
    uint64_t n;
    *out = NULL;
    *length = 0;
    DP_TRY(take_number(r, width, &n, err));
    if (n > r->size - r->at)
        return truncated(r, err);
    *length = (size_t)n;
    return take(r, *length, out, err);
}

static dp_status read_long(reader *r, size_t width, dp_error *err)
{
    const unsigned char *bytes;
    size_t length;
    dp_pickle_value *value;
    DP_TRY(take_counted(r, width, &bytes, &length, err));
    if (length <= 8) {
        uint64_t number = length && bytes[length - 1] & 0x80 ? UINT64_MAX : 0;
        for (size_t i = length; i-- > 0;)
            number = number << 8 | bytes[i];
        return push_int(r, DP_PICKLE_INT, (int64_t)number, err);
    }
    DP_TRY(push_new(r, DP_PICKLE_BIG, &value, err));
    value->text = (const char *)bytes;
    value->count = (uint32_t)length;
    return DP_OK;
}

static dp_status read_text(reader *r, size_t width, dp_error *err)
{
    const unsigned char *bytes;
    size_t length;
    dp_pickle_value *value;
    DP_TRY(take_counted(r, width, &bytes, &length, err));
    DP_TRY(push_new(r, DP_PICKLE_TEXT, &value, err));
    value->text = (const char *)bytes;
    value->count = (uint32_t)length;
    return DP_OK;
}

static dp_status read_float(reader *r, dp_error *err)
{
    const unsigned char *bytes;
    dp_pickle_value *value;
    DP_TRY(take(r, 8, &bytes, err));
    return push_new(r, DP_PICKLE_FLOAT, &value, err);
}

static dp_status push_global(reader *r, const char *module, size_t module_length, const char *name,
                             size_t length, dp_error *err)
{
    dp_pickle_value *value;
    for (int i = 0; r->globals[i]; i++) {
        const char *known = r->globals[i];
        if (strlen(known) == module_length + 1 + length && memcmp(known, module, module_length) == 0 &&
            known[module_length] == '.' && memcmp(known + module_length + 1, name, length) == 0) {
            DP_TRY(push_new(r, DP_PICKLE_GLOBAL, &value, err));
            value->text = known;
            return DP_OK;
        }
    }
    return dp_fail(
        err, DP_ERROR_IO,
        "it asks for '%.*s.%.*s', which a state dict has no use for: refused, nothing was executed; "
        "save model.state_dict() alone",
        module_length > 200 ? 200 : (int)module_length, module, length > 200 ? 200 : (int)length, name);
}

static dp_status read_global(reader *r, dp_error *err)
{
    const char *module, *name;
    size_t module_length, length;
    DP_TRY(take_line(r, &module, &module_length, err));
    DP_TRY(take_line(r, &name, &length, err));
    return push_global(r, module, module_length, name, length, err);
}

static dp_status stack_global(reader *r, dp_error *err)
{
    dp_pickle_value **at;
    DP_TRY(pop(r, 2, &at, err));
    if (at[0]->kind != DP_PICKLE_TEXT || at[1]->kind != DP_PICKLE_TEXT)
        return unsound("the name of a global is not text", err);
    return push_global(r, at[0]->text, at[0]->count, at[1]->text, at[1]->count, err);
}

static dp_status put(reader *r, uint64_t index, dp_error *err)
{
    dp_pickle_value *value;
    DP_TRY(top(r, &value, err));
    if (index >= DP_PICKLE_MAX_VALUES)
        return unsound("a memo number beyond all values", err);
    if (index >= r->memo_room) {
        size_t room = r->memo_room ? r->memo_room : 64;
        while (room <= index)
            room *= 2;
        DP_TRY(dp_realloc(&r->memo, room, sizeof *r->memo, "a pickle", err));
        memset(r->memo + r->memo_room, 0, (room - r->memo_room) * sizeof *r->memo);
        r->memo_room = room;
    }
    r->memo_count += !r->memo[index];
    r->memo[index] = value;
    return DP_OK;
}

static dp_status read_put(reader *r, size_t width, dp_error *err)
{
    uint64_t index;
    DP_TRY(take_number(r, width, &index, err));
    return put(r, index, err);
}

static dp_status read_get(reader *r, size_t width, dp_error *err)
{
    uint64_t index;
    DP_TRY(take_number(r, width, &index, err));
    if (index >= r->memo_room || !r->memo[index])
        return unsound("it refers to a value that it has not put into its memo", err);
    return push(r, r->memo[index], err);
}

static dp_status gather_tuple(reader *r, size_t n, dp_error *err)
{
    dp_pickle_value **at;
    DP_TRY(pop(r, n, &at, err));
    return gather(r, DP_PICKLE_TUPLE, at, n, err);
}

static dp_status gather_marked(reader *r, dp_error *err)
{
    dp_pickle_value **at;
    size_t n;
    DP_TRY(pop_mark(r, &at, &n, err));
    return gather(r, DP_PICKLE_TUPLE, at, n, err);
}

static dp_status mark(reader *r, dp_error *err)
{
    if (r->mark_count == MAX_MARKS)
        return dp_fail(err, DP_ERROR_IO, "the pickle nests deeper than %d levels", MAX_MARKS);
    r->marks[r->mark_count++] = r->height;
    return DP_OK;
}

/* Items for the list or dictionary below them: `n` of them, or those above the mark. */
static dp_status extend(reader *r, dp_pickle_kind kind, size_t n, bool marked, dp_error *err)
{
    dp_pickle_value **at, *to;
    if (marked)
        DP_TRY(pop_mark(r, &at, &n, err));
    else
        DP_TRY(pop(r, n, &at, err));
    DP_TRY(top(r, &to, err));
    if (to->kind != kind || (kind == DP_PICKLE_DICT && n % 2 != 0))
        return unsound("items for something that takes none, or a key without a value", err);
    return append(r, to, at, n, err);
}

/* OrderedDict() or, from Python 2, OrderedDict([[key, value], ...]). */
static dp_status make_dictionary(reader *r, const dp_pickle_value *arguments, dp_error *err)
{
    dp_pickle_value *dictionary;
    DP_TRY(push_new(r, DP_PICKLE_DICT, &dictionary, err));
    if (arguments->count == 0)
        return DP_OK;
    const dp_pickle_value *pairs = arguments->items[0];
    if (arguments->count > 1 || (pairs->kind != DP_PICKLE_LIST && pairs->kind != DP_PICKLE_TUPLE))
        return unsound("an OrderedDict of something else than pairs", err);
    for (uint32_t i = 0; i < pairs->count; i++) {
        const dp_pickle_value *pair = pairs->items[i];
        if ((pair->kind != DP_PICKLE_LIST && pair->kind != DP_PICKLE_TUPLE) || pair->count != 2)
            return unsound("an OrderedDict of something else than pairs", err);
        DP_TRY(append(r, dictionary, pair->items, 2, err));
    }
    return DP_OK;
}

static dp_status call(reader *r, dp_error *err)
{
    dp_pickle_value **at, *made;
    DP_TRY(pop(r, 2, &at, err));
    dp_pickle_value *parts[3] = {at[0], at[1], NULL};
    if (parts[0]->kind != DP_PICKLE_GLOBAL || parts[1]->kind != DP_PICKLE_TUPLE)
        return unsound("it calls something that is no function", err);
    if (strcmp(parts[0]->text, "collections.OrderedDict") == 0)
        return make_dictionary(r, parts[1], err);
    DP_TRY(push_new(r, DP_PICKLE_CALL, &made, err));
    return append(r, made, parts, 3, err);
}

/* A state dict's own attributes (_metadata) say nothing of its tensors. */
static dp_status build(reader *r, dp_error *err)
{
    dp_pickle_value **at, *to;
    DP_TRY(pop(r, 1, &at, err));
    DP_TRY(top(r, &to, err));
    if (to->kind == DP_PICKLE_CALL)
        to->items[2] = *at;
    else if (to->kind != DP_PICKLE_DICT)
        return unsound("attributes for something that has none", err);
    return DP_OK;
}

static dp_status refer(reader *r, dp_error *err)
{
    dp_pickle_value **at;
    DP_TRY(pop(r, 1, &at, err));
    return gather(r, DP_PICKLE_REFERENCE, at, 1, err);
}

static dp_status discard(reader *r, dp_error *err)
{
    dp_pickle_value **at;
    return pop(r, 1, &at, err);
}

static dp_status protocol(reader *r, dp_error *err)
{
    uint64_t version;
    DP_TRY(take_number(r, 1, &version, err));
    if (version < 2 || version > 5)
        return dp_fail(err, DP_ERROR_IO, "pickle protocol %d is not supported (2 to 5 are)", (int)version);
    return DP_OK;
}

static dp_status frame(reader *r, dp_error *err)
{
    uint64_t length; /* a hint for readers of streams */
    return take_number(r, 8, &length, err);
}

static dp_status stop(reader *r, dp_error *err)
{
    dp_pickle_value **at;
    if (r->mark_count != 0)
        return unsound("it ends within a container", err);
    DP_TRY(pop(r, 1, &at, err));
    r->pickle->root = *at;
    r->stopped = true;
    return DP_OK;
}

static dp_status refuse(unsigned char opcode, dp_error *err)
{
    static const struct {
        unsigned char opcode;
        const char *name;
    } known[] = {{'I', "INT"},
                 {'L', "LONG"},
                 {'F', "FLOAT"},
                 {'S', "STRING"},
                 {'V', "UNICODE"},
                 {'P', "PERSID"},
                 {'i', "INST"},
                 {'o', "OBJ"},
                 {'l', "LIST"},
                 {'d', "DICT"},
                 {'p', "PUT"},
                 {'g', "GET"},
                 {'1', "POP_MARK"},
                 {'2', "DUP"},
                 {'B', "BINBYTES"},
                 {'C', "SHORT_BINBYTES"},
                 {0x82, "EXT1"},
                 {0x83, "EXT2"},
                 {0x84, "EXT4"},
                 {0x8e, "BINBYTES8"},
                 {0x8f, "EMPTY_SET"},
                 {0x90, "ADDITEMS"},
                 {0x91, "FROZENSET"},
                 {0x92, "NEWOBJ_EX"},
                 {0x96, "BYTEARRAY8"},
                 {0x97, "NEXT_BUFFER"},
                 {0x98, "READONLY_BUFFER"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].opcode == opcode)
            return dp_fail(err, DP_ERROR_IO,
                           "it uses the pickle opcode %s, which a state dict has no use for", known[i].name);
    return dp_fail(err, DP_ERROR_IO, "the pickle is unsound: there is no opcode 0x%02x", opcode);
}

static dp_status step(reader *r, dp_error *err)
{
    const unsigned char *opcode;
    dp_pickle_value *value;
    DP_TRY(take(r, 1, &opcode, err));
    switch (*opcode) {
    case 0x80:
        return protocol(r, err);
    case 0x95:
        return frame(r, err);
    case '.':
        return stop(r, err);
    case 'N':
        return push_new(r, DP_PICKLE_NONE, &value, err);
    case 0x88:
    case 0x89:
        return push_int(r, DP_PICKLE_BOOL, *opcode == 0x88, err);
    case 'J':
        return read_int(r, 4, err);
    case 'K':
        return read_int(r, 1, err);
    case 'M':
        return read_int(r, 2, err);
    case 0x8a:
        return read_long(r, 1, err);
    case 0x8b:
        return read_long(r, 4, err);
    case 'G':
        return read_float(r, err);
    case 'X':
    case 'T':
        return read_text(r, 4, err);
    case 0x8c:
    case 'U':
        return read_text(r, 1, err);
    case 0x8d:
        return read_text(r, 8, err);
    case 'c':
        return read_global(r, err);
    case 0x93:
        return stack_global(r, err);
    case 'q':
        return read_put(r, 1, err);
    case 'r':
        return read_put(r, 4, err);
    case 0x94:
        return put(r, r->memo_count, err);
    case 'h':
        return read_get(r, 1, err);
    case 'j':
        return read_get(r, 4, err);
    case '(':
        return mark(r, err);
    case ')':
        return push_new(r, DP_PICKLE_TUPLE, &value, err);
    case ']':
        return push_new(r, DP_PICKLE_LIST, &value, err);
    case '}':
        return push_new(r, DP_PICKLE_DICT, &value, err);
    case 't':
        return gather_marked(r, err);
    case 0x85:
    case 0x86:
    case 0x87:
        return gather_tuple(r, *opcode - 0x84u, err);
    case 'a':
        return extend(r, DP_PICKLE_LIST, 1, false, err);
    case 'e':
        return extend(r, DP_PICKLE_LIST, 0, true, err);
    case 's':
        return extend(r, DP_PICKLE_DICT, 2, false, err);
    case 'u':
        return extend(r, DP_PICKLE_DICT, 0, true, err);
    case 'R':
    case 0x81:
        return call(r, err);
    case 'b':
        return build(r, err);
    case 'Q':
        return refer(r, err);
    case '0':
        return discard(r, err);
    default:
        return refuse(*opcode, err);
    }
}

dp_status dp_pickle_read(const void *bytes, size_t size, const char *const *globals, dp_pickle **out,
                         size_t *used, dp_error *err)
{
    *out = NULL;
    *used = 0;
    reader r = {.bytes = bytes, .size = size < MAX_BYTES ? size : MAX_BYTES, .globals = globals};
    DP_TRY(dp_calloc(1, sizeof *r.pickle, "a pickle", &r.pickle, err));
    r.room = 64; /* so that there is a stack even where nothing is pushed */
    dp_status status = dp_calloc(r.room, sizeof(dp_pickle_value *), "a pickle", &r.stack, err);
    while (status == DP_OK && !r.stopped)
        status = step(&r, err);
    dp_free(r.stack);
    dp_free(r.memo);
    if (status != DP_OK) {
        dp_pickle_free(r.pickle);
        return status;
    }
    *used = r.at;
    *out = r.pickle;
    return DP_OK;
}
