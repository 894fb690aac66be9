#include "io/torch_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

enum {
    MAX_WRAPPERS = 4, /* a Parameter around a tensor, and then some */
    MAX_NAME = 4096,
    MORE_COPIES = 64 << 20, /* bytes that strided tensors may take up beyond the file's size */
};

const char *const dp_torch_storages[DP_DTYPES] = {
    [DP_F32] = "torch.FloatStorage",     [DP_F64] = "torch.DoubleStorage", [DP_F16] = "torch.HalfStorage",
    [DP_BF16] = "torch.BFloat16Storage", [DP_I64] = "torch.LongStorage",   [DP_I32] = "torch.IntStorage",
    [DP_I16] = "torch.ShortStorage",     [DP_I8] = "torch.CharStorage",    [DP_U8] = "torch.ByteStorage",
    [DP_BOOL] = "torch.BoolStorage"};

static const char rebuild_v2[] = "torch._utils._rebuild_tensor_v2",
                  rebuild[] = "torch._utils._rebuild_tensor",
                  rebuild_parameter[] = "torch._utils._rebuild_parameter",
                  parameter[] = "torch.nn.parameter.Parameter", size_class[] = "torch.Size";

/* ---- storages ---- */

static int compare_storages(const void *a, const void *b)
{
    const dp_torch_storage *x = a, *y = b;
    size_t shorter = x->key_length < y->key_length ? x->key_length : y->key_length;
    int order = memcmp(x->key, y->key, shorter);
    return order ? order : (x->key_length > y->key_length) - (x->key_length < y->key_length);
}

static dp_torch_storage *find_storage(const dp_torch_reader *r, const dp_pickle_value *key)
{
    const dp_torch_storage wanted = {.key = key->text, .key_length = key->count};
    if (r->storage_count == 0)
        return NULL;
    return bsearch(&wanted, r->storages, r->storage_count, sizeof wanted, compare_storages);
}

typedef struct reference {
    const dp_pickle_value *key;
    dp_dtype dtype;
    int64_t elements, first; /* from element `first` of the storage on */
    int64_t all;             /* elements of the storage, first included */
} reference;

static bool is_int(const dp_pickle_value *v)
{
    return v->kind == DP_PICKLE_INT && v->number >= 0;
}

/* A persistent id: ("storage", class, key, device, elements), and in the legacy format None or, for a view of
 * another storage, (its key, first element, elements). */
static dp_status read_reference(const dp_pickle_value *value, reference *out, dp_error *err)
{
    const dp_pickle_value *id = value->kind == DP_PICKLE_REFERENCE ? value->items[0] : value;
    if (id->kind != DP_PICKLE_TUPLE || id->count < 5 || !dp_pickle_is_text(id->items[0], "storage") ||
        id->items[1]->kind != DP_PICKLE_GLOBAL || id->items[2]->kind != DP_PICKLE_TEXT ||
        !is_int(id->items[4]))
        return dp_fail(err, DP_ERROR_IO, "a tensor does not say where its contents are");
    int dtype = 0;
    while (dtype < DP_DTYPES && strcmp(dp_torch_storages[dtype], id->items[1]->text) != 0)
        dtype++;
    if (dtype == DP_DTYPES)
        return dp_fail(err, DP_ERROR_IO, "a tensor's storage is a '%s', which is none", id->items[1]->text);
    *out = (reference){.key = id->items[2], .dtype = (dp_dtype)dtype, .elements = id->items[4]->number};
    out->all = out->elements;
    if (id->count < 6 || id->items[5]->kind == DP_PICKLE_NONE)
        return DP_OK;
    const dp_pickle_value *view = id->items[5];
    if (view->kind != DP_PICKLE_TUPLE || view->count != 3 || !is_int(view->items[1]) ||
        !is_int(view->items[2]) || view->items[1]->number > out->all ||
        view->items[2]->number > out->all - view->items[1]->number)
        return dp_fail(err, DP_ERROR_IO, "a view of a storage is out of its range");
    out->first = view->items[1]->number;
    out->elements = view->items[2]->number;
    return DP_OK;
}

/* Those of an archive: its entries FOLDER/data/KEY. */
dp_status dp_torch_list_entries(dp_torch_reader *r, const char *folder, size_t folder_length, dp_error *err)
{
    static const char data[] = "data/";
    DP_TRY(dp_calloc(dp_zip_count(r->zip), sizeof *r->storages, "a table of storages", &r->storages, err));
    for (size_t i = 0; i < dp_zip_count(r->zip); i++) {
        const dp_zip_entry *e = dp_zip_at(r->zip, i);
        size_t before = folder_length + sizeof data - 1;
        if (e->name_length <= before || memcmp(e->name, folder, folder_length) != 0 ||
            memcmp(e->name + folder_length, data, sizeof data - 1) != 0)
            continue;
        r->storages[r->storage_count++] = (dp_torch_storage){.key = e->name + before,
                                                             .key_length = e->name_length - before,
                                                             .data = e->data,
                                                             .bytes = e->size,
                                                             .unchecked = e};
    }
    return DP_OK; /* sorted as the entries are */
}

/* Those of a legacy file, each once, as the pickle describes them. */
dp_status dp_torch_list_references(dp_torch_reader *r, dp_error *err)
{
    size_t count = 0, values = dp_pickle_count(r->pickle);
    for (size_t i = 0; i < values; i++)
        count += dp_pickle_at(r->pickle, i)->kind == DP_PICKLE_REFERENCE;
    DP_TRY(dp_calloc(count, sizeof *r->storages, "a table of storages", &r->storages, err));
    for (size_t i = 0, n = 0; i < values; i++) {
        const dp_pickle_value *value = dp_pickle_at(r->pickle, i);
        reference ref;
        if (value->kind != DP_PICKLE_REFERENCE)
            continue;
        DP_TRY(read_reference(value, &ref, err));
        r->storages[n++] = (dp_torch_storage){
            .key = ref.key->text, .key_length = ref.key->count, .dtype = ref.dtype, .elements = ref.all};
    }
    qsort(r->storages, count, sizeof *r->storages, compare_storages);
    for (size_t i = 0; i < count; i++) {
        const dp_torch_storage *s = &r->storages[i], *last = i ? &r->storages[r->storage_count - 1] : NULL;
        if (last && compare_storages(last, s) == 0) {
            if (last->dtype != s->dtype || last->elements != s->elements)
                return dp_fail(err, DP_ERROR_IO, "a storage is described in two ways");
            continue;
        }
        r->storages[r->storage_count++] = *s;
    }
    return DP_OK;
}

static int64_t little_endian(const unsigned char *at)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | at[i];
    return (int64_t)value;
}

/* The contents: for each key the number of elements (8 bytes), then these. */
dp_status dp_torch_locate_storages(dp_torch_reader *r, const dp_pickle_value *keys, size_t at, dp_error *err)
{
    for (uint32_t i = 0; i < keys->count; i++) {
        dp_torch_storage *s = keys->items[i]->kind == DP_PICKLE_TEXT ? find_storage(r, keys->items[i]) : NULL;
        if (!s || s->data)
            return dp_fail(err, DP_ERROR_IO,
                           "its list of storages names one that no tensor uses, or one twice");
        size_t width = dp_dtype_size(s->dtype), left = r->size - at;
        if (left < 8 || (uint64_t)s->elements > (left - 8) / width)
            return dp_fail(err, DP_ERROR_IO, "the file is truncated: a storage of %lld elements is not whole",
                           (long long)s->elements);
        if (little_endian(r->bytes + at) != s->elements)
            return dp_fail(err, DP_ERROR_IO, "a storage of %lld elements is said to have %lld",
                           (long long)little_endian(r->bytes + at), (long long)s->elements);
        s->data = r->bytes + at + 8;
        s->bytes = (size_t)s->elements * width;
        at += 8 + s->bytes;
    }
    return DP_OK;
}

/* ---- tensors ---- */

/* What a Parameter wraps: its first argument or, in files of before 0.4, the first of five states. */
static const dp_pickle_value *unwrap(const dp_pickle_value *value)
{
    for (int i = 0; i < MAX_WRAPPERS && value->kind == DP_PICKLE_CALL; i++) {
        const char *callee = value->items[0]->text;
        const dp_pickle_value *arguments = value->items[1], *state = value->items[2];
        if (strcmp(callee, rebuild_parameter) != 0 && strcmp(callee, parameter) != 0)
            return value;
        if (state && state->kind == DP_PICKLE_TUPLE && state->count == 5)
            value = state->items[0];
        else if (arguments->count > 0)
            value = arguments->items[0];
        else
            break;
    }
    return value;
}

static bool calls(const dp_pickle_value *value, const char *callee)
{
    return value->kind == DP_PICKLE_CALL && strcmp(value->items[0]->text, callee) == 0;
}

bool dp_torch_is_tensor(const dp_pickle_value *value)
{
    value = unwrap(value);
    return calls(value, rebuild_v2) || calls(value, rebuild) || calls(value, rebuild_parameter) ||
           calls(value, parameter);
}

/* A tuple of whole numbers from 0, or a torch.Size of one. */
static bool read_numbers(const dp_pickle_value *value, int64_t out[DP_TENSOR_MAX_RANK], int *count)
{
    if (calls(value, size_class) && value->items[1]->count == 1)
        value = value->items[1]->items[0];
    if (value->kind != DP_PICKLE_TUPLE || value->count > DP_TENSOR_MAX_RANK)
        return false;
    *count = (int)value->count;
    for (uint32_t i = 0; i < value->count; i++) {
        if (!is_int(value->items[i]))
            return false;
        out[i] = value->items[i]->number;
    }
    return true;
}

typedef struct view {
    const unsigned char *data; /* of its first element */
    int64_t stride[DP_TENSOR_MAX_RANK];
} view;

/* The last element that the strides reach, from `first` on; false if that is beyond 63 bits. */
static bool last_element(const dp_tensor *t, const int64_t *stride, int64_t first, int64_t *out)
{
    *out = first;
    for (int d = 0; d < t->rank; d++) {
        int64_t reach;
        if (__builtin_mul_overflow(t->shape[d] - 1, stride[d], &reach) ||
            __builtin_add_overflow(*out, reach, out))
            return false;
    }
    return true;
}

static dp_status place(dp_torch_reader *r, const reference *ref, int64_t offset, dp_tensor *t, view *v,
                       dp_error *err)
{
    dp_torch_storage *s = find_storage(r, ref->key);
    int64_t last = 0;
    if (!s || !s->data)
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s': its storage is not in the file", t->name);
    if ((uint64_t)ref->all > s->bytes / dp_dtype_size(t->dtype))
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s': its storage of %lld elements has %zu bytes alone",
                       t->name, (long long)ref->all, s->bytes);
    if (!dp_tensor_measure(t))
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s': its shape is too large for any file", t->name);
    if (t->elements > 0 && (!last_element(t, v->stride, offset, &last) || last >= ref->elements))
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s' goes beyond the %lld elements of its storage",
                       t->name, (long long)ref->elements);
    if (s->unchecked)
        DP_TRY(dp_zip_check(s->unchecked, err));
    s->unchecked = NULL;
    v->data = s->data;
    if (t->elements > 0)
        v->data += (size_t)(ref->first + offset) * dp_dtype_size(t->dtype);
    return DP_OK;
}

static bool is_contiguous(const dp_tensor *t, const view *v)
{
    int64_t stride = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        if (t->shape[d] != 1 && v->stride[d] != stride)
            return false;
        stride *= t->shape[d];
    }
    return true;
}

/* Copies the elements into C order. */
static void straighten(const dp_tensor *t, const view *v, unsigned char *out)
{
    size_t width = dp_dtype_size(t->dtype);
    int64_t index[DP_TENSOR_MAX_RANK] = {0}, at = 0;
    for (int64_t i = 0; i < t->elements; i++) {
        memcpy(out + (size_t)i * width, v->data + (size_t)at * width, width);
        for (int d = t->rank - 1; d >= 0; d--) {
            at += v->stride[d];
            if (++index[d] < t->shape[d])
                break;
            at -= index[d] * v->stride[d];
            index[d] = 0;
        }
    }
}

static dp_status copy(dp_torch_reader *r, dp_tensor *t, const view *v, void **out, dp_error *err)
{
    if (t->bytes > r->size + MORE_COPIES - r->copied)
        return dp_fail(err, DP_ERROR_IO,
                       "tensor '%.100s': its strides make far more of it than the file holds", t->name);
    DP_TRY(dp_calloc(t->bytes, 1, "a tensor", out, err));
    r->copied += t->bytes;
    straighten(t, v, *out);
    t->data = *out;
    return DP_OK;
}

static dp_status read_name(const dp_pickle_value *key, char **out, dp_error *err)
{
    if (key->kind != DP_PICKLE_TEXT || key->count > MAX_NAME || memchr(key->text, 0, key->count))
        return dp_fail(err, DP_ERROR_IO, "the name of a tensor is not text, or longer than %d bytes",
                       MAX_NAME);
    DP_TRY(dp_calloc(key->count + 1, 1, "a name", out, err));
    memcpy(*out, key->text, key->count);
    if (!dp_is_utf8(*out))
        return dp_fail(err, DP_ERROR_IO, "the name of tensor '%.100s' is not UTF-8", *out);
    return DP_OK;
}

dp_status dp_torch_read_tensor(dp_torch_reader *r, const dp_pickle_value *key, const dp_pickle_value *value,
                               dp_error *err)
{
    dp_tensor *t = &r->file->tensors[r->file->count];
    void **own = &r->file->copies[r->file->count++]; /* counted at once: closing frees the name */
    DP_TRY(read_name(key, &t->name, err));
    value = unwrap(value);
    bool made = calls(value, rebuild_v2) || calls(value, rebuild);
    const dp_pickle_value *arguments = made ? value->items[1] : NULL;
    reference ref;
    view v = {0};
    int strides = 0;
    if (!made || arguments->count < 4 || !is_int(arguments->items[1]) ||
        !read_numbers(arguments->items[2], t->shape, &t->rank) ||
        !read_numbers(arguments->items[3], v.stride, &strides) || strides != t->rank)
        return dp_fail(
            err, DP_ERROR_IO,
            "tensor '%.100s' is described in a way that is not known (it needs offset, size and strides "
            "from 0, and at most %d dimensions)",
            t->name, DP_TENSOR_MAX_RANK);
    DP_TRY(read_reference(arguments->items[0], &ref, err));
    t->dtype = ref.dtype;
    DP_TRY(place(r, &ref, arguments->items[1]->number, t, &v, err));
    t->data = v.data;
    return is_contiguous(t, &v) || t->elements == 0 ? DP_OK : copy(r, t, &v, own, err);
}
