/* The reader of PyTorch's files, zip and legacy. */
#include <stdlib.h>

#include "io/torch_file.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dp_error err = {0};
    dp_torch_file *file;
    volatile float sum = 0;
    dp_torch_recognises(data, size);
    dp_status status = dp_torch_parse(data, size, "input", &file, &err);
    fuzz_check(status, &err);
    for (int i = 0; status == DP_OK && i < dp_torch_count(file); i++) {
        const dp_tensor *tensor = dp_torch_at(file, i);
        if (tensor->bytes != (size_t)tensor->elements * dp_dtype_size(tensor->dtype))
            abort();
        for (int64_t e = 0; e < tensor->elements; e++)
            sum += dp_tensor_float(tensor, e) + (float)dp_tensor_int(tensor, e);
    }
    (void)sum;
    dp_torch_close(file);
    return 0;
}
