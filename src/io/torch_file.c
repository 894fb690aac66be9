#include "io/torch_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/torch_internal.h"

enum { TAR_MAGIC_AT = 257, LEGACY_PROTOCOL = 1001 };

/* All that a state dict may name. Types and devices come with what optimizers keep beside it. */
static const char *const globals[] = {"collections.OrderedDict",
                                      "torch._utils._rebuild_tensor_v2",
                                      "torch._utils._rebuild_tensor",
                                      "torch._utils._rebuild_parameter",
                                      "torch.nn.parameter.Parameter",
                                      "torch.Size",
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
        count += dp_torch_is_tensor(dictionary->items[i + 1]);
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
static dp_status read_state_dict(dp_torch_reader *r, dp_error *err)
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
        if (dp_torch_is_tensor(dictionary->items[i + 1]))
            DP_TRY(dp_torch_read_tensor(r, dictionary->items[i], dictionary->items[i + 1], err));
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

static dp_status read_zip(dp_torch_reader *r, dp_error *err)
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
    DP_TRY(dp_torch_list_entries(r, pickle->name, folder, err));
    DP_TRY(dp_pickle_read(pickle->data, pickle->size, globals, &r->pickle, &used, err));
    return read_state_dict(r, err);
}

typedef dp_status (*root_check)(const dp_pickle_value *root, dp_error *err);

/* Reads the next pickle of a legacy file, of which `check` needs to see the root alone. */
static dp_status pass_pickle(const dp_torch_reader *r, size_t *at, root_check check, dp_error *err)
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

static dp_status read_legacy(dp_torch_reader *r, dp_error *err)
{
    size_t at = 0, used;
    DP_TRY(pass_pickle(r, &at, check_magic, err));
    DP_TRY(pass_pickle(r, &at, check_protocol, err));
    DP_TRY(pass_pickle(r, &at, check_system, err));
    DP_TRY(dp_pickle_read(r->bytes + at, r->size - at, globals, &r->pickle, &used, err));
    at += used;
    DP_TRY(dp_torch_list_references(r, err));
    dp_pickle *keys;
    DP_TRY(dp_pickle_read(r->bytes + at, r->size - at, globals, &keys, &used, err));
    dp_status status = dp_pickle_root(keys)->kind == DP_PICKLE_LIST
                           ? dp_torch_locate_storages(r, dp_pickle_root(keys), at + used, err)
                           : dp_fail(err, DP_ERROR_IO, "it has no list of storages");
    dp_pickle_free(keys);
    return status == DP_OK ? read_state_dict(r, err) : status;
}

static dp_status parse(dp_torch_reader *r, dp_error *err)
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
    dp_torch_reader r = {.bytes = bytes, .size = size};
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
