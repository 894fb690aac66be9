/* Weights from one file format to another. */
#include <stdbool.h>
#include <string.h>

#include "base/memory.h"
#include "io/torch_file.h"
#include "io/weights_file.h"
#include "train/train.h"

static bool ends_with(const char *path, const char *ending)
{
    size_t length = strlen(path), tail = strlen(ending);
    return length > tail && strcmp(path + length - tail, ending) == 0;
}

static dp_status write_safetensors(const char *to, const dp_tensor *tensors, int count, dp_error *err)
{
    static const dp_metadata metadata[] = {{"format", "pt"}};
    for (int i = 0; i < count; i++)
        if (strcmp(tensors[i].name, "__metadata__") == 0)
            return dp_fail(err, DP_ERROR_MISMATCH, "no tensor in safetensors may be named '__metadata__'");
    return dp_safetensors_write(to, tensors, count, metadata, 1, err);
}

dp_status dp_weights_convert(const char *from, const char *to, int *tensors, uint64_t *bytes, dp_error *err)
{
    bool torch = ends_with(to, ".pt") || ends_with(to, ".pth");
    dp_weights_file *file;
    dp_tensor *all = NULL;
    *tensors = 0;
    *bytes = 0;
    if (!torch && !ends_with(to, ".safetensors"))
        return dp_fail(err, DP_ERROR_USAGE,
                       "'%s' must end in .pt, .pth or .safetensors: which it is to become", to);
    DP_TRY(dp_weights_file_open(from, &file, err));
    int count = dp_weights_file_count(file);
    dp_status status = DP_OK;
    if (!torch && !dp_weights_file_is_torch(file))
        status = dp_fail(err, DP_ERROR_MISMATCH, "'%s' is safetensors already", from);
    if (status == DP_OK)
        status = dp_calloc((size_t)count, sizeof *all, "a table of tensors", &all, err);
    for (int i = 0; i < count && status == DP_OK; i++) {
        all[i] = *dp_weights_file_at(file, i);
        *bytes += all[i].bytes;
    }
    if (status == DP_OK)
        status = torch ? dp_torch_write(to, all, count, err) : write_safetensors(to, all, count, err);
    if (status == DP_OK)
        *tensors = count;
    dp_free(all);
    dp_weights_file_close(file);
    return status;
}
