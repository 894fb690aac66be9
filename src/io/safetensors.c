#include "io/safetensors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "io/file.h"

enum {
    LENGTH_BYTES = 8,             /* the header's length, before the header */
    MAX_HEADER_BYTES = 100000000, /* the reference implementation's limit */
    MAX_NESTING = 8,              /* a sound header has three levels */
    ALIGNMENT = 8,
};

struct dp_safetensors {
    void *bytes;       /* the whole file; NULL if the contents are the caller's or stay in the file */
    dp_file *stream;   /* where contents stay in the file */
    size_t data_begin; /* of the first tensor's contents in the file */
    json_t *metadata;  /* an object of strings, or NULL */
    dp_tensor *tensors;
    const dp_tensor **by_name; /* sorted */
    int count;
};

/* What follows the header: its size, and its bytes unless they stay in the file. */
typedef struct contents {
    const unsigned char *bytes;
    size_t size;
} contents;

/* ---- reading the header ---- */

static dp_status read_dtype(const json_t *value, dp_tensor *tensor, dp_error *err)
{
    const char *text = json_string_value(value);
    if (!text)
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s' has no dtype", tensor->name);
    for (int i = 0; i < DP_DTYPES; i++) {
        if (strcmp(text, dp_dtype_name((dp_dtype)i)) == 0) {
            tensor->dtype = (dp_dtype)i;
            return DP_OK;
        }
    }
    return dp_fail(err, DP_ERROR_IO, "tensor '%.100s' has dtype '%.32s', which is not supported",
                   tensor->name, text);
}

static dp_status read_shape(const json_t *value, dp_tensor *tensor, dp_error *err)
{
    if (!json_is_array(value))
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s' has no shape", tensor->name);
    size_t rank = json_array_size(value);
    if (rank > DP_TENSOR_MAX_RANK)
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s' has %zu dimensions; at most %d are supported",
                       tensor->name, rank, DP_TENSOR_MAX_RANK);
    tensor->rank = (int)rank;
    for (size_t d = 0; d < rank; d++) {
        const json_t *extent = json_array_get(value, d);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return dp_fail(err, DP_ERROR_IO, "tensor '%.100s': dimension %zu is not a whole number from 0",
                           tensor->name, d);
        tensor->shape[d] = json_integer_value(extent);
    }
    if (!dp_tensor_measure(tensor))
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s': its shape is too large for any file",
                       tensor->name);
    return DP_OK;
}

static dp_status read_offsets(const json_t *value, const contents *data, dp_tensor *tensor, dp_error *err)
{
    const json_t *begin_value = json_array_get(value, 0), *end_value = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin_value) || !json_is_integer(end_value))
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s': data_offsets are not two whole numbers",
                       tensor->name);
    long long begin = json_integer_value(begin_value), end = json_integer_value(end_value);
    if (begin < 0 || end < begin)
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s': data_offsets %lld to %lld are out of order",
                       tensor->name, begin, end);
    if ((unsigned long long)end > data->size)
        return dp_fail(err, DP_ERROR_IO,
                       "tensor '%.100s' ends at byte %lld of the data, of which there are %zu: the file is "
                       "truncated or corrupt",
                       tensor->name, end, data->size);
    if ((size_t)(end - begin) != tensor->bytes)
        return dp_fail(err, DP_ERROR_IO,
                       "tensor '%.100s': its shape needs %zu bytes, but data_offsets hold %lld", tensor->name,
                       tensor->bytes, end - begin);
    tensor->offset = (size_t)begin;
    tensor->data = data->bytes ? data->bytes + begin : NULL;
    return DP_OK;
}

static dp_status read_metadata(dp_safetensors *file, json_t *value, dp_error *err)
{
    if (!json_is_object(value))
        return dp_fail(err, DP_ERROR_IO, "__metadata__ is not an object");
    const char *key;
    json_t *text;
    json_object_foreach(value, key, text)
    {
        if (!json_is_string(text))
            return dp_fail(err, DP_ERROR_IO, "__metadata__ entry '%.100s' is not a string", key);
    }
    file->metadata = json_incref(value);
    return DP_OK;
}

static dp_status read_tensor(dp_safetensors *file, const char *name, const json_t *entry,
                             const contents *data, dp_error *err)
{
    dp_tensor *tensor = &file->tensors[file->count++]; /* counted at once: closing frees the name */
    DP_TRY(dp_strdup(name, &tensor->name, err));
    if (!json_is_object(entry))
        return dp_fail(err, DP_ERROR_IO, "tensor '%.100s' is not described by an object", name);
    DP_TRY(read_dtype(json_object_get(entry, "dtype"), tensor, err));
    DP_TRY(read_shape(json_object_get(entry, "shape"), tensor, err));
    return read_offsets(json_object_get(entry, "data_offsets"), data, tensor, err);
}

/* A hostile header could nest so deep that freeing it overflows the stack; a sound one has three levels. */
static bool nests_too_deep(const char *text, size_t size)
{
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            if (++depth > MAX_NESTING)
                return true;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return false;
}

static dp_status parse_json(const char *text, size_t size, json_t **out, dp_error *err)
{
    if (size == 0 || text[0] != '{')
        return dp_fail(err, DP_ERROR_IO, "not a safetensors file: its header does not begin with '{'");
    if (nests_too_deep(text, size))
        return dp_fail(err, DP_ERROR_IO, "the header nests deeper than %d levels", MAX_NESTING);
    json_error_t problem;
    *out = json_loadb(text, size, JSON_REJECT_DUPLICATES, &problem);
    if (!*out && json_error_code(&problem) == json_error_out_of_memory)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory for the header");
    if (!*out)
        return dp_fail(err, DP_ERROR_IO, "the header is not valid JSON: %s (at byte %d)", problem.text,
                       problem.position);
    return DP_OK;
}

static dp_status read_entries(dp_safetensors *file, json_t *root, const contents *data, dp_error *err)
{
    DP_TRY(
        dp_calloc(json_object_size(root), sizeof *file->tensors, "a table of tensors", &file->tensors, err));
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            DP_TRY(read_metadata(file, entry, err));
        else
            DP_TRY(read_tensor(file, name, entry, data, err));
    }
    return DP_OK;
}

/* ---- the table as a whole ---- */

static int compare_positions(const void *a, const void *b)
{
    const dp_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

static int compare_names(const void *a, const void *b)
{
    const dp_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The tensors must lie end to end and fill the data exactly. */
static dp_status check_coverage(dp_safetensors *file, size_t data_size, dp_error *err)
{
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_positions);
    size_t end = 0;
    for (int i = 0; i < file->count; i++) {
        const dp_tensor *tensor = &file->tensors[i];
        if (tensor->offset != end)
            return dp_fail(err, DP_ERROR_IO, "tensor '%.100s' %s", tensor->name,
                           tensor->offset < end ? "overlaps another one" : "comes after a hole in the data");
        end += tensor->bytes;
    }
    if (end != data_size)
        return dp_fail(err, DP_ERROR_IO, "bytes after the last tensor that belong to none: %zu",
                       data_size - end);
    return DP_OK;
}

static dp_status index_names(dp_safetensors *file, dp_error *err)
{
    DP_TRY(dp_calloc((size_t)file->count, sizeof *file->by_name, "a table of tensors", &file->by_name, err));
    for (int i = 0; i < file->count; i++)
        file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names);
    return DP_OK;
}

/* The header's length from the file's first bytes; `size` is the whole file's. */
static dp_status header_length(const unsigned char *bytes, size_t size, size_t *out, dp_error *err)
{
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > MAX_HEADER_BYTES)
        return dp_fail(err, DP_ERROR_IO,
                       "not a safetensors file: a header of %llu bytes (at most %d are accepted)",
                       (unsigned long long)length, MAX_HEADER_BYTES);
    if (length > size - LENGTH_BYTES)
        return dp_fail(err, DP_ERROR_IO, "truncated: a header of %llu bytes in a file of %zu",
                       (unsigned long long)length, size);
    *out = (size_t)length;
    return DP_OK;
}

bool dp_safetensors_recognises(const void *bytes, size_t size)
{
    const char *text = bytes;
    size_t length;
    return size > LENGTH_BYTES && text[LENGTH_BYTES] == '{' &&
           header_length(bytes, SIZE_MAX, &length, NULL) == DP_OK;
}

static dp_status too_short(size_t size, dp_error *err)
{
    return dp_fail(err, DP_ERROR_IO, "not a safetensors file: %zu byte%s long", size, size == 1 ? "" : "s");
}

static dp_status parse_header(dp_safetensors *file, const char *text, size_t length, const contents *data,
                              dp_error *err)
{
    json_t *root;
    file->data_begin = LENGTH_BYTES + length;
    DP_TRY(parse_json(text, length, &root, err));
    dp_status status = read_entries(file, root, data, err);
    json_decref(root);
    if (status == DP_OK)
        status = check_coverage(file, data->size, err);
    return status == DP_OK ? index_names(file, err) : status;
}

static dp_status parse(dp_safetensors *file, const unsigned char *bytes, size_t size, dp_error *err)
{
    size_t length = 0;
    if (size < LENGTH_BYTES)
        return too_short(size, err);
    DP_TRY(header_length(bytes, size, &length, err));
    const unsigned char *text = bytes + LENGTH_BYTES;
    const contents data = {text + length, size - LENGTH_BYTES - length};
    return parse_header(file, (const char *)text, length, &data, err);
}

/* The same, reading the header alone. *named: the error names the file. */
static dp_status parse_stream(dp_safetensors *file, bool *named, dp_error *err)
{
    size_t size = dp_file_size(file->stream), length = 0;
    unsigned char prefix[LENGTH_BYTES];
    char *text;
    if (size < LENGTH_BYTES)
        return too_short(size, err);
    *named = true;
    DP_TRY(dp_file_read_at(file->stream, 0, prefix, sizeof prefix, err));
    *named = false;
    DP_TRY(header_length(prefix, size, &length, err));
    DP_TRY(dp_calloc(length, 1, "a header", &text, err));
    dp_status status = dp_file_read_at(file->stream, LENGTH_BYTES, text, length, err);
    *named = status != DP_OK;
    if (status == DP_OK)
        status = parse_header(file, text, length, &(contents){.size = size - LENGTH_BYTES - length}, err);
    dp_free(text);
    return status;
}

/* Passes a file that was read well on to *out, or frees it. */
static dp_status hand_over(dp_safetensors *file, dp_status status, const char *name, dp_safetensors **out,
                           dp_error *err)
{
    if (status == DP_OK) {
        *out = file;
        return DP_OK;
    }
    if (name) {
        dp_error_one_line(err);
        dp_error_prefix(err, "cannot read '%s'", name);
    }
    dp_safetensors_close(file);
    return status;
}

dp_status dp_safetensors_parse(const void *bytes, size_t size, const char *name, dp_safetensors **out,
                               dp_error *err)
{
    *out = NULL;
    dp_safetensors *file;
    DP_TRY(dp_calloc(1, sizeof *file, "a safetensors file", &file, err));
    return hand_over(file, parse(file, bytes, size, err), name, out, err);
}

dp_status dp_safetensors_open(const char *path, dp_safetensors **out, dp_error *err)
{
    *out = NULL;
    void *bytes;
    size_t size;
    DP_TRY(dp_file_read(path, &bytes, &size, err));
    dp_status status = dp_safetensors_parse(bytes, size, path, out, err);
    if (status == DP_OK)
        (*out)->bytes = bytes;
    else
        dp_free(bytes);
    return status;
}

dp_status dp_safetensors_open_header(const char *path, dp_safetensors **out, dp_error *err)
{
    *out = NULL;
    dp_safetensors *file;
    DP_TRY(dp_calloc(1, sizeof *file, "a safetensors file", &file, err));
    bool named = true;
    dp_status status = dp_file_open(path, &file->stream, err);
    if (status == DP_OK) {
        named = false;
        status = parse_stream(file, &named, err);
    }
    return hand_over(file, status, named ? NULL : path, out, err);
}

dp_status dp_safetensors_checksum(const dp_safetensors *file, uint32_t *crc, dp_error *err)
{
    return dp_file_checksum(file->stream, file->data_begin, crc, err);
}

dp_status dp_safetensors_read(const dp_safetensors *file, const dp_tensor *tensor, size_t first, void *out,
                              size_t n, dp_error *err)
{
    if (first > tensor->bytes || n > tensor->bytes - first)
        return dp_fail(err, DP_ERROR_INTERNAL, "tensor '%.100s' has no bytes %zu to %zu", tensor->name, first,
                       first + n);
    if (file->stream)
        return dp_file_read_at(file->stream, file->data_begin + tensor->offset + first, out, n, err);
    memcpy(out, (const char *)tensor->data + first, n);
    return DP_OK;
}

void dp_safetensors_close(dp_safetensors *file)
{
    if (!file)
        return;
    for (int i = 0; i < file->count; i++)
        dp_free(file->tensors[i].name);
    dp_free(file->tensors);
    dp_free(file->by_name);
    json_decref(file->metadata);
    dp_free(file->bytes);
    dp_file_close(file->stream);
    dp_free(file);
}

int dp_safetensors_count(const dp_safetensors *file)
{
    return file->count;
}

const dp_tensor *dp_safetensors_at(const dp_safetensors *file, int index)
{
    return &file->tensors[index];
}

const dp_tensor *dp_safetensors_find(const dp_safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        int order = strcmp(file->by_name[middle]->name, name);
        if (order == 0)
            return file->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const char *dp_safetensors_metadata(const dp_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}

/* ---- writing ---- */

static dp_status no_memory_for_header(dp_error *err)
{
    return dp_fail(err, DP_ERROR_MEMORY, "out of memory for a safetensors header");
}

static dp_status add_metadata(json_t *root, const dp_metadata *metadata, int count, dp_error *err)
{
    if (count == 0)
        return DP_OK;
    json_t *object = json_object();
    for (int i = 0; object && i < count; i++) {
        if (json_object_set_new(object, metadata[i].key, json_string(metadata[i].value)) == 0)
            continue;
        json_decref(object);
        if (dp_is_utf8(metadata[i].key) && dp_is_utf8(metadata[i].value))
            return no_memory_for_header(err);
        return dp_fail(err, DP_ERROR_INTERNAL, "metadata '%.100s' is not valid UTF-8", metadata[i].key);
    }
    return json_object_set_new(root, "__metadata__", object) == 0 ? DP_OK : no_memory_for_header(err);
}

static json_t *describe(const dp_tensor *tensor, size_t begin)
{
    json_t *shape = json_array();
    bool sound = shape != NULL;
    for (int d = 0; sound && d < tensor->rank; d++)
        sound = json_array_append_new(shape, json_integer(tensor->shape[d])) == 0;
    if (!sound) {
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dp_dtype_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + tensor->bytes));
}

static dp_status add_tensor(json_t *root, const dp_tensor *tensor, size_t begin, dp_error *err)
{
    dp_tensor measured = *tensor;
    if (tensor->rank < 0 || tensor->rank > DP_TENSOR_MAX_RANK || !dp_tensor_measure(&measured) ||
        measured.bytes != tensor->bytes)
        return dp_fail(err, DP_ERROR_INTERNAL, "tensor '%.100s': its shape and its %zu bytes do not agree",
                       tensor->name, tensor->bytes);
    if (strcmp(tensor->name, "__metadata__") == 0 || json_object_get(root, tensor->name))
        return dp_fail(err, DP_ERROR_INTERNAL, "tensor '%.100s': the name is already taken", tensor->name);
    if (json_object_set_new(root, tensor->name, describe(tensor, begin)) == 0)
        return DP_OK;
    if (dp_is_utf8(tensor->name))
        return no_memory_for_header(err);
    return dp_fail(err, DP_ERROR_INTERNAL, "tensor '%.100s': its name is not valid UTF-8", tensor->name);
}

/* The header as text, which jansson allocated: owner is the caller, with free(). */
static dp_status build_header(const dp_tensor *tensors, int count, const dp_metadata *metadata,
                              int metadata_count, char **out, dp_error *err)
{
    json_t *root = json_object();
    if (!root)
        return no_memory_for_header(err);
    dp_status status = add_metadata(root, metadata, metadata_count, err);
    size_t begin = 0;
    for (int i = 0; status == DP_OK && i < count; i++) {
        status = add_tensor(root, &tensors[i], begin, err);
        begin += tensors[i].bytes;
    }
    if (status == DP_OK) {
        *out = json_dumps(root, JSON_COMPACT);
        if (!*out)
            status = no_memory_for_header(err);
    }
    json_decref(root);
    return status;
}

static dp_status write_header(dp_atomic_file *file, const char *header, dp_error *err)
{
    size_t length = strlen(header), padding = (ALIGNMENT - length % ALIGNMENT) % ALIGNMENT;
    if (length + padding > MAX_HEADER_BYTES)
        return dp_fail(err, DP_ERROR_INTERNAL, "a safetensors header of %zu bytes is too long", length);
    unsigned char prefix[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++)
        prefix[i] = (unsigned char)((uint64_t)(length + padding) >> 8 * i);
    DP_TRY(dp_atomic_write(file, prefix, sizeof prefix, err));
    DP_TRY(dp_atomic_write(file, header, length, err));
    return dp_atomic_write(file, "       ", padding, err);
}

static dp_status write_all(dp_atomic_file *file, const char *header, const dp_tensor *tensors, int count,
                           const dp_tensor_source *source, dp_error *err)
{
    DP_TRY(write_header(file, header, err));
    for (int i = 0; i < count; i++) {
        const void *data;
        DP_TRY(dp_tensor_contents(tensors, i, source, &data, err));
        DP_TRY(dp_atomic_write(file, data, tensors[i].bytes, err));
    }
    return DP_OK;
}

dp_status dp_safetensors_write(const char *path, const dp_tensor *tensors, int count,
                               const dp_metadata *metadata, int metadata_count, dp_error *err)
{
    return dp_safetensors_write_from(path, tensors, count, NULL, metadata, metadata_count, err);
}

dp_status dp_safetensors_write_from(const char *path, const dp_tensor *tensors, int count,
                                    const dp_tensor_source *source, const dp_metadata *metadata,
                                    int metadata_count, dp_error *err)
{
    char *header = NULL;
    dp_atomic_file *file;
    dp_status status = build_header(tensors, count, metadata, metadata_count, &header, err);
    if (status != DP_OK) {
        dp_error_prefix(err, "cannot write '%s'", path);
        return status;
    }
    status = dp_atomic_open(path, &file, err);
    if (status == DP_OK) {
        status = write_all(file, header, tensors, count, source, err);
        if (status == DP_OK)
            status = dp_atomic_commit(file, err);
        else
            dp_atomic_abandon(file);
    }
    free(header);
    return status;
}
