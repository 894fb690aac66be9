/* Writing a state dict as torch.save does; see torch_file.h. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/torch_internal.h"

/* A pickle that grows. The first failure is kept, so that it is looked at once. */
typedef struct writer {
    unsigned char *bytes;
    size_t size, room;
    dp_status status;
    dp_error *err;
} writer;

static void put(writer *w, const void *bytes, size_t n)
{
    if (w->status == DP_OK && w->room - w->size < n) {
        size_t room = 2 * (w->size + n) + 1024;
        w->status = dp_realloc(&w->bytes, room, 1, "a pickle", w->err);
        if (w->status == DP_OK)
            w->room = room;
    }
    if (w->status != DP_OK)
        return;
    memcpy(w->bytes + w->size, bytes, n);
    w->size += n;
}

static void put_opcode(writer *w, char opcode)
{
    put(w, &opcode, 1);
}

static void put_little_endian(writer *w, uint64_t value, int width)
{
    unsigned char bytes[8];
    for (int i = 0; i < width; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
    put(w, bytes, (size_t)width);
}

static void put_text(writer *w, const char *text)
{
    put_opcode(w, 'X'); /* BINUNICODE */
    put_little_endian(w, strlen(text), 4);
    put(w, text, strlen(text));
}

static void put_int(writer *w, int64_t value)
{
    if (value <= INT32_MAX) {
        put_opcode(w, 'J'); /* BININT */
        put_little_endian(w, (uint64_t)value, 4);
    } else {
        put(w, "\x8a\x08", 2); /* LONG1 of 8 bytes */
        put_little_endian(w, (uint64_t)value, 8);
    }
}

/* "module.name": the last dot parts them. */
static void put_global(writer *w, const char *global)
{
    const char *dot = strrchr(global, '.');
    put_opcode(w, 'c'); /* GLOBAL */
    put(w, global, (size_t)(dot - global));
    put_opcode(w, '\n');
    put(w, dot + 1, strlen(dot + 1));
    put_opcode(w, '\n');
}

static void put_ints(writer *w, const int64_t *values, int count)
{
    put_opcode(w, '('); /* MARK */
    for (int i = 0; i < count; i++)
        put_int(w, values[i]);
    put_opcode(w, 't'); /* TUPLE */
}

static void put_empty_dictionary(writer *w)
{
    put_global(w, "collections.OrderedDict");
    put(w, ")R", 2); /* EMPTY_TUPLE, REDUCE */
}

/* _rebuild_tensor_v2(storage, offset, size, strides, requires_grad, hooks) */
static void put_tensor(writer *w, const dp_tensor *t, int key)
{
    char text[16];
    int64_t strides[DP_TENSOR_MAX_RANK], stride = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= t->shape[d] > 0 ? t->shape[d] : 1;
    }
    snprintf(text, sizeof text, "%d", key);
    put_global(w, "torch._utils._rebuild_tensor_v2");
    put_opcode(w, '(');
    put_opcode(w, '(');
    put_text(w, "storage");
    put_global(w, dp_torch_storages[t->dtype]);
    put_text(w, text);
    put_text(w, "cpu");
    put_int(w, (int64_t)(t->bytes / dp_dtype_size(t->dtype)));
    put(w, "tQ", 2); /* TUPLE, BINPERSID */
    put_int(w, 0);
    put_ints(w, t->shape, t->rank);
    put_ints(w, strides, t->rank);
    put_opcode(w, '\x89'); /* NEWFALSE */
    put_empty_dictionary(w);
    put(w, "tR", 2);
}

static void put_state_dict(writer *w, const dp_tensor *tensors, int count)
{
    put(w, "\x80\x02", 2); /* PROTO 2 */
    put_empty_dictionary(w);
    put_opcode(w, '(');
    for (int i = 0; i < count; i++) {
        put_text(w, tensors[i].name);
        put_tensor(w, &tensors[i], i);
    }
    put(w, "u.", 2); /* SETITEMS, STOP */
}

static dp_status add_all(dp_zip_writer *zip, const writer *pickle, const dp_tensor *tensors, int count,
                         dp_error *err)
{
    DP_TRY(dp_zip_add(zip, "archive/data.pkl", pickle->bytes, pickle->size, err));
    DP_TRY(dp_zip_add(zip, "archive/byteorder", "little", 6, err));
    for (int i = 0; i < count; i++) {
        char name[40];
        snprintf(name, sizeof name, "archive/data/%d", i);
        DP_TRY(dp_zip_add(zip, name, tensors[i].data, tensors[i].bytes, err));
    }
    return dp_zip_add(zip, "archive/version", "3\n", 2, err);
}

static dp_status check_shapes(const dp_tensor *tensors, int count, dp_error *err)
{
    for (int i = 0; i < count; i++) {
        dp_tensor measured = tensors[i];
        if (!dp_tensor_measure(&measured) || measured.bytes != tensors[i].bytes)
            return dp_fail(err, DP_ERROR_INTERNAL,
                           "tensor '%.100s': its shape and its %zu bytes do not agree", tensors[i].name,
                           tensors[i].bytes);
    }
    return DP_OK;
}

dp_status dp_torch_write(const char *path, const dp_tensor *tensors, int count, dp_error *err)
{
    dp_zip_writer *zip;
    writer pickle = {.err = err};
    DP_TRY(check_shapes(tensors, count, err));
    put_state_dict(&pickle, tensors, count);
    dp_status status = pickle.status;
    if (status == DP_OK)
        status = dp_zip_create(path, &zip, err);
    if (status == DP_OK) {
        status = add_all(zip, &pickle, tensors, count, err);
        if (status == DP_OK)
            status = dp_zip_commit(zip, err);
        else
            dp_zip_abandon(zip);
    }
    dp_free(pickle.bytes);
    return status;
}
