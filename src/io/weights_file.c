#include "io/weights_file.h"

#include "base/memory.h"
#include "io/file.h"
#include "io/torch_file.h"

struct dp_weights_file {
    void *bytes; /* the whole file */
    dp_safetensors *safetensors;
    dp_torch_file *torch; /* one of the two */
};

dp_status dp_weights_file_open(const char *path, dp_weights_file **out, dp_error *err)
{
    *out = NULL;
    dp_weights_file *file;
    size_t size = 0;
    DP_TRY(dp_calloc(1, sizeof *file, "a file of weights", &file, err));
    dp_status status = dp_file_read(path, &file->bytes, &size, err);
    if (status == DP_OK && dp_torch_recognises(file->bytes, size))
        status = dp_torch_parse(file->bytes, size, path, &file->torch, err);
    else if (status == DP_OK && !dp_safetensors_recognises(file->bytes, size))
        status = dp_fail(
            err, DP_ERROR_IO,
            "cannot read '%s': neither a PyTorch file (it begins like no zip archive and no pickle) nor "
            "a safetensors file (it begins with no length and header)",
            path);
    else if (status == DP_OK)
        status = dp_safetensors_parse(file->bytes, size, path, &file->safetensors, err);
    if (status != DP_OK) {
        dp_weights_file_close(file);
        return status;
    }
    *out = file;
    return DP_OK;
}

void dp_weights_file_close(dp_weights_file *file)
{
    if (!file)
        return;
    dp_safetensors_close(file->safetensors);
    dp_torch_close(file->torch);
    dp_free(file->bytes);
    dp_free(file);
}

bool dp_weights_file_is_torch(const dp_weights_file *file)
{
    return file->torch != NULL;
}

int dp_weights_file_count(const dp_weights_file *file)
{
    return file->torch ? dp_torch_count(file->torch) : dp_safetensors_count(file->safetensors);
}

const dp_tensor *dp_weights_file_at(const dp_weights_file *file, int index)
{
    return file->torch ? dp_torch_at(file->torch, index) : dp_safetensors_at(file->safetensors, index);
}

const char *dp_weights_file_metadata(const dp_weights_file *file, const char *key)
{
    return file->torch ? NULL : dp_safetensors_metadata(file->safetensors, key);
}
