/* The safetensors reader: raw bytes, in memory and with contents that stay in the file. */
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"
#include "tests/fuzz/fuzz.h"

static float look(const dp_safetensors *file)
{
    float sum = 0;
    for (int i = 0; i < dp_safetensors_count(file); i++) {
        const dp_tensor *tensor = dp_safetensors_at(file, i);
        if (dp_safetensors_find(file, tensor->name) != tensor)
            abort();
        for (int64_t e = 0; tensor->data && e < tensor->elements; e++)
            sum += dp_tensor_float(tensor, e) + (float)dp_tensor_int(tensor, e);
        if (tensor->bytes > 0) {
            char first, last;
            if (dp_safetensors_read(file, tensor, 0, &first, 1, NULL) != DP_OK ||
                dp_safetensors_read(file, tensor, tensor->bytes - 1, &last, 1, NULL) != DP_OK)
                abort();
            sum += (float)(first + last);
        }
    }
    dp_safetensors_metadata(file, "model");
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dp_error err = {0}, streamed = {0};
    dp_safetensors *file;
    volatile float sum = 0;
    dp_status status = dp_safetensors_parse(data, size, "input", &file, &err);
    fuzz_check(status, &err);
    if (status == DP_OK)
        sum = look(file);
    dp_safetensors_close(file);
    if (dp_safetensors_open_header(fuzz_file(data, size), &file, &streamed) != status)
        abort(); /* both ways give the same verdict */
    fuzz_check(status, &streamed);
    if (status == DP_OK)
        sum = look(file);
    dp_safetensors_close(file);
    (void)sum;
    return 0;
}
