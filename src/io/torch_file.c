#include "io/torch_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "io/pickle.h"
#include "io/torch_types.h"
#include "io/zip.h"

enum {
    MAX_WRAPPERS = 4, /* a Parameter around a tensor, and then some */
    MAX_NAME = 4096,
    MORE_COPIES = 64 << 20, /* bytes that strided tensors may take up beyond the file's size */
    TAR_MAGIC_AT = 257,
};

/* Where a storage's contents lie. */
typedef struct storage {
    const char *key;
    size_t key_length;
    dp_dtype dtype;            /* legacy files alone */
    int64_t elements;          /* likewise */
    const unsigned char *data; /* NULL: not in the file */
    size_t bytes;
    const dp_zip_entry *unchecked; /* of which this is the contents, until its checksum was looked at */
} storage;

struct dp_torch_file {
    dp_tensor *tensors;
    void **copies; /* of tensor i, or NULL */
    int count;
};

typedef struct reader {
    const unsigned char *bytes;
    size_t size;
    dp_torch_file *file;
    dp_zip *zip; /* NULL: the legacy format */
    dp_pickle *pickle;
    storage *storages; /* sorted by key */
    size_t storage_count;
    size_t copied;
} reader;

const char *const dp_torch_storages[DP_DTYPES] = {
    [DP_F32] = "torch.FloatStorage",     [DP_F64] = "torch.DoubleStorage", [DP_F16] = "torch.HalfStorage",
    [DP_BF16] = "torch.BFloat16Storage", [DP_I64] = "torch.LongStorage",   [DP_I32] = "torch.IntStorage",
    [DP_I16] = "torch.ShortStorage",     [DP_I8] = "torch.CharStorage",    [DP_U8] = "torch.ByteStorage",
    [DP_BOOL] = "torch.BoolStorage"};

static const char rebuild_v2[] = "torch._utils._rebuild_tensor_v2",
                  rebuild[] = "torch._utils._rebuild_tensor",
                  rebuild_parameter[] = "torch._utils._rebuild_parameter",
                  parameter[] = "torch.nn.parameter.Parameter", size_class[] = "torch.Size";

/* All that a state dict may name. Types and devices come with what optimizers keep beside it. */
static const char *const globals[] = {"collections.OrderedDict",
                                      rebuild_v2,
                                      rebuild,
                                      rebuild_parameter,
                                      parameter,
                                      size_class,
                                      "torch.device",
                                      "torch.FloatStorage",
                                      "torch.DoubleStorage",
                                      "torch.HalfStorage",
                                      "torch.LongStorage",
                                      "torch.BFloat16Storage",
                                      "torch.IntStorage",
                                      "torch.ShortStorage",
                                      "torch.CharStorage",
                                      "torch.ByteStorage",
                                      "torch.BoolStorage",
                                      "torch.float32",
                                      "torch.float64",
                                      "torch.float16",
                                      "torch.bfloat16",
                                      "torch.int64",
                                      "torch.int32",
                                      "torch.int16",
                                      "torch.int8",
                                      "torch.uint8",
                                      "torch.bool",
                                      NULL};

/* The number that every file of the legacy format begins with, torch/serialization.py's MAGIC_NUMBER. */
static const unsigned char magic[] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
enum { LEGACY_PROTOCOL = 1001 };

static bool is_zip(const unsigned char *bytes, size_t size)
{
    return size >= 4 && memcmp(bytes, "PK\3\4", 4) == 0;
}

static bool is_tar(const unsigned char *bytes, size_t size)
{
    return size >= TAR_MAGIC_AT + 5 && memcmp(bytes + TAR_MAGIC_AT, "ustar", 5) == 0;
}

/* A safetensors file of a header as long as a pickle's first bytes say has a brace where a pickle has none.
 */
static bool is_pickle(const unsigned char *bytes, size_t size)
{
    return size >= 2 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5 && !(size > 8 && bytes[8] == '{');
}

bool dp_torch_recognises(const void *bytes, size_t size)
{
    return is_zip(bytes, size) || is_tar(bytes, size) || is_pickle(bytes, size);
}

/* ---- storages ---- */

static int compare_storages(const void *a, const void *b)
{
    const storage *x = a, *y = b;
    size_t shorter = x->key_length < y->key_length ? x->key_length : y->key_length;
    int order = memcmp(x->key, y->key, shorter);
    return order ? order : (x->key_length > y->key_length) - (x->key_length < y->key_length);
}

static storage *find_storage(const reader *r, const dp_pickle_value *key)
{
    const storage wanted = {.key = key->text, .key_length = key->count};
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
static dp_status list_entries(reader *r, const char *folder, size_t folder_length, dp_error *err)
{
    static const char data[] = "data/";
    DP_TRY(dp_calloc(dp_zip_count(r->zip), sizeof *r->storages, "a table of storages", &r->storages, err));
    for (size_t i = 0; i < dp_zip_count(r->zip); i++) {
        const dp_zip_entry *e = dp_zip_at(r->zip, i);
        size_t before = folder_length + sizeof data - 1;
        if (e->name_length <= before || memcmp(e->name, folder, folder_length) != 0 ||
            memcmp(e->name + folder_length, data, sizeof data - 1) != 0)
            continue;
        r->storages[r->storage_count++] = (storage){.key = e->name + before,
                                                    .key_length = e->name_length - before,
                                                    .data = e->data,
                                                    .bytes = e->size,
                                                    .unchecked = e};
    }
    return DP_OK; /* sorted as the entries are */
}

/* Those of a legacy file, each once, as the pickle describes them. */
static dp_status list_references(reader *r, dp_error *err)
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
        r->storages[n++] = (storage){
            .key = ref.key->text, .key_length = ref.key->count, .dtype = ref.dtype, .elements = ref.all};
    }
    qsort(r->storages, count, sizeof *r->storages, compare_storages);
    for (size_t i = 0; i < count; i++) {
        const storage *s = &r->storages[i], *last = i ? &r->storages[r->storage_count - 1] : NULL;
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
static dp_status locate_storages(reader *r, const dp_pickle_value *keys, size_t at, dp_error *err)
{
    for (uint32_t i = 0; i < keys->count; i++) {
        storage *s = keys->items[i]->kind == DP_PICKLE_TEXT ? find_storage(r, keys->items[i]) : NULL;
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

static bool is_tensor(const dp_pickle_value *value)
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

/* Elements and bytes; false where there are more than any file could hold. */
static bool measure(dp_tensor *t)
{
    int64_t elements = 1, bytes;
    for (int d = 0; d < t->rank; d++)
        if (__builtin_mul_overflow(elements, t->shape[d], &elements))
            return false;
    if (__builtin_mul_overflow(elements, (int64_t)dp_dtype_size(t->dtype), &bytes))
        return false;
    t->elements = elements;
    t->bytes = (size_t)bytes;
    return true;
}

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

static dp_status place(reader *r, const reference *ref, int64_t offset, dp_tensor *t, view *v, dp_error *err)
{
    storage *s = find_storage(r, ref->key);
    int64_t last = 0;
    if (!s || !s->data)
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s': its storage is not in the file", t->name);
    if ((uint64_t)ref->all > s->bytes / dp_dtype_size(t->dtype))
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s': its storage of %lld elements has %zu bytes alone",
                       t->name, (long long)ref->all, s->bytes);
    if (!measure(t))
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

static dp_status copy(reader *r, dp_tensor *t, const view *v, void **out, dp_error *err)
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

static dp_status read_tensor(reader *r, const dp_pickle_value *key, const dp_pickle_value *value,
                             dp_error *err)
{
    dp_tensor *t = &r->file->tensors[r->file->count];
    void **own = &r->file->copies[r->file->count++]; /* counted at once: closing frees the name */
    DP_TRY(read_name(key, &t->name, err));
    value = unwrap(value);
    bool made = calls(value, rebuild_v2) || calls(value, rebuild);
    const dp_pickle_value *arguments = made ? value->items[1] : NULL;
    reference ref;
    view v;
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

/* ---- the state dict ---- */

static const dp_pickle_value *look_up(const dp_pickle_value *dictionary, const char *key)
{
    for (uint32_t i = 0; i + 1 < dictionary->count; i += 2)
        if (dp_pickle_is_text(dictionary->items[i], key))
            return dictionary->items[i + 1];
    return NULL;
}

static uint32_t count_tensors(const dp_pickle_value *dictionary)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i + 1 < dictionary->count; i += 2)
        count += is_tensor(dictionary->items[i + 1]);
    return count;
}

static dp_status no_state_dict(const dp_pickle_value *root, dp_error *err)
{
    char keys[300] = "";
    size_t used = 0;
    for (uint32_t i = 0; root->kind == DP_PICKLE_DICT && i + 1 < root->count && used < sizeof keys / 2;
         i += 2) {
        const dp_pickle_value *key = root->items[i];
        if (key->kind == DP_PICKLE_TEXT)
            used += (size_t)snprintf(keys + used, sizeof keys - used, "%s'%.*s'", used ? ", " : " among ",
                                     key->count > 40 ? 40 : (int)key->count, key->text);
    }
    return dp_fail(
        err, DP_ERROR_IO,
        "no state dict was found%s: save model.state_dict() alone or under 'state_dict', 'model' or "
        "'model_state_dict'",
        keys);
}

static int compare_names(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static dp_status check_names(const dp_torch_file *file, dp_error *err)
{
    const char **names;
    DP_TRY(dp_calloc((size_t)file->count, sizeof *names, "a table of names", &names, err));
    for (int i = 0; i < file->count; i++)
        names[i] = file->tensors[i].name;
    qsort(names, (size_t)file->count, sizeof *names, compare_names);
    dp_status status = DP_OK;
    for (int i = 1; i < file->count && status == DP_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = dp_fail(err, DP_ERROR_IO, "there are two tensors '%.100s'", names[i]);
    dp_free(names);
    return status;
}

/* What is no tensor beside tensors (a module's extra state, a count of epochs) is left out. */
static dp_status read_state_dict(reader *r, dp_error *err)
{
    static const char *const wrappers[] = {"state_dict", "model", "model_state_dict"};
    const dp_pickle_value *root = dp_pickle_root(r->pickle), *dictionary = root;
    for (size_t i = 0; root->kind == DP_PICKLE_DICT && i < sizeof wrappers / sizeof *wrappers; i++) {
        const dp_pickle_value *inner = look_up(root, wrappers[i]);
        if (inner && inner->kind == DP_PICKLE_DICT) {
            dictionary = inner;
            break;
        }
    }
    uint32_t count = dictionary->kind == DP_PICKLE_DICT ? count_tensors(dictionary) : 0;
    if (count == 0)
        return no_state_dict(root, err);
    DP_TRY(dp_calloc(count, sizeof *r->file->tensors, "a table of tensors", &r->file->tensors, err));
    DP_TRY(dp_calloc(count, sizeof *r->file->copies, "a table of tensors", &r->file->copies, err));
    for (uint32_t i = 0; i + 1 < dictionary->count; i += 2)
        if (is_tensor(dictionary->items[i + 1]))
            DP_TRY(read_tensor(r, dictionary->items[i], dictionary->items[i + 1], err));
    return check_names(r->file, err);
}

/* ---- the two formats ---- */

/* Finds the archive's one folder by the pickle in it. */
static const dp_zip_entry *find_pickle(const dp_zip *zip, size_t *folder)
{
    static const char name[] = "data.pkl";
    for (size_t i = 0; i < dp_zip_count(zip); i++) {
        const dp_zip_entry *e = dp_zip_at(zip, i);
        const char *slash = memchr(e->name, '/', e->name_length);
        *folder = slash ? (size_t)(slash - e->name) + 1 : 0;
        if (e->name_length - *folder == sizeof name - 1 &&
            memcmp(e->name + *folder, name, sizeof name - 1) == 0)
            return e;
    }
    return NULL;
}

static const dp_zip_entry *find_in_folder(const dp_zip *zip, const dp_zip_entry *sibling, size_t folder,
                                          const char *name)
{
    char path[1024];
    int n = snprintf(path, sizeof path, "%.*s%s", (int)folder, sibling->name, name);
    return n > 0 && (size_t)n < sizeof path ? dp_zip_find(zip, path) : NULL;
}

static dp_status big_endian(dp_error *err)
{
    return dp_fail(err, DP_ERROR_IO, "it was written on a big-endian machine, which is not supported");
}

static dp_status read_zip(reader *r, dp_error *err)
{
    size_t folder = 0, used;
    DP_TRY(dp_zip_parse(r->bytes, r->size, &r->zip, err));
    const dp_zip_entry *pickle = find_pickle(r->zip, &folder);
    if (!pickle)
        return dp_fail(err, DP_ERROR_IO, "a zip archive without data.pkl is none of PyTorch's");
    if (find_in_folder(r->zip, pickle, folder, "constants.pkl"))
        return dp_fail(err, DP_ERROR_IO,
                       "it is a TorchScript program: save its state_dict() with torch.save");
    const dp_zip_entry *order = find_in_folder(r->zip, pickle, folder, "byteorder");
    if (order && (order->size != 6 || memcmp(order->data, "little", 6) != 0))
        return big_endian(err);
    DP_TRY(dp_zip_check(pickle, err));
    DP_TRY(list_entries(r, pickle->name, folder, err));
    DP_TRY(dp_pickle_read(pickle->data, pickle->size, globals, &r->pickle, &used, err));
    return read_state_dict(r, err);
}

typedef dp_status (*root_check)(const dp_pickle_value *root, dp_error *err);

/* Reads the next pickle of a legacy file, of which `check` needs to see the root alone. */
static dp_status pass_pickle(const reader *r, size_t *at, root_check check, dp_error *err)
{
    dp_pickle *pickle;
    size_t used;
    DP_TRY(dp_pickle_read(r->bytes + *at, r->size - *at, globals, &pickle, &used, err));
    dp_status status = check(dp_pickle_root(pickle), err);
    dp_pickle_free(pickle);
    *at += used;
    return status;
}

static dp_status check_magic(const dp_pickle_value *root, dp_error *err)
{
    if (root->kind == DP_PICKLE_BIG && root->count == sizeof magic &&
        memcmp(root->text, magic, sizeof magic) == 0)
        return DP_OK;
    return dp_fail(err, DP_ERROR_IO, "a pickle, but not one of torch.save's");
}

static dp_status check_protocol(const dp_pickle_value *root, dp_error *err)
{
    if (root->kind == DP_PICKLE_INT && root->number == LEGACY_PROTOCOL)
        return DP_OK;
    return dp_fail(err, DP_ERROR_IO, "its version of torch.save's format is not %d", LEGACY_PROTOCOL);
}

static dp_status check_system(const dp_pickle_value *root, dp_error *err)
{
    const dp_pickle_value *little = root->kind == DP_PICKLE_DICT ? look_up(root, "little_endian") : NULL;
    if (!little || little->kind != DP_PICKLE_BOOL)
        return dp_fail(err, DP_ERROR_IO, "it does not say what machine it was written on");
    return little->number ? DP_OK : big_endian(err);
}

static dp_status read_legacy(reader *r, dp_error *err)
{
    size_t at = 0, used;
    DP_TRY(pass_pickle(r, &at, check_magic, err));
    DP_TRY(pass_pickle(r, &at, check_protocol, err));
    DP_TRY(pass_pickle(r, &at, check_system, err));
    DP_TRY(dp_pickle_read(r->bytes + at, r->size - at, globals, &r->pickle, &used, err));
    at += used;
    DP_TRY(list_references(r, err));
    dp_pickle *keys;
    DP_TRY(dp_pickle_read(r->bytes + at, r->size - at, globals, &keys, &used, err));
    dp_status status = dp_pickle_root(keys)->kind == DP_PICKLE_LIST
                           ? locate_storages(r, dp_pickle_root(keys), at + used, err)
                           : dp_fail(err, DP_ERROR_IO, "it has no list of storages");
    dp_pickle_free(keys);
    return status == DP_OK ? read_state_dict(r, err) : status;
}

static dp_status parse(reader *r, dp_error *err)
{
    if (is_zip(r->bytes, r->size))
        return read_zip(r, err);
    if (is_tar(r->bytes, r->size))
        return dp_fail(
            err, DP_ERROR_IO,
            "PyTorch's tar format of before 0.1.10 is not supported: load it with torch.load and save it "
            "again");
    return read_legacy(r, err);
}

dp_status dp_torch_parse(const void *bytes, size_t size, const char *name, dp_torch_file **out, dp_error *err)
{
    *out = NULL;
    reader r = {.bytes = bytes, .size = size};
    DP_TRY(dp_calloc(1, sizeof *r.file, "a PyTorch file", &r.file, err));
    dp_status status = parse(&r, err);
    dp_free(r.storages);
    dp_pickle_free(r.pickle);
    dp_zip_free(r.zip);
    if (status == DP_OK) {
        *out = r.file;
        return DP_OK;
    }
    dp_error_one_line(err);
    dp_error_prefix(err, "cannot read '%s'", name);
    dp_torch_close(r.file);
    return status;
}

void dp_torch_close(dp_torch_file *file)
{
    if (!file)
        return;
    for (int i = 0; i < file->count; i++) {
        dp_free(file->tensors[i].name);
        dp_free(file->copies[i]);
    }
    dp_free(file->tensors);
    dp_free(file->copies);
    dp_free(file);
}

int dp_torch_count(const dp_torch_file *file)
{
    return file->count;
}

const dp_tensor *dp_torch_at(const dp_torch_file *file, int index)
{
    return &file->tensors[index];
}
