/* A safetensors file as training data: opened, and every sample read; see fuzz_framed_file. */
#include <stdio.h>
#include <stdlib.h>

#include "dptrain/data.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_BYTES = 1 << 16 };

static void read_all(const dp_dataset *dataset)
{
    if (!dataset)
        return;
    const dp_dataset_info *info = dp_dataset_info_of(dataset);
    if (info->elements > MOST_BYTES || info->target_bytes > MOST_BYTES)
        return;
    /* As long as they must be, so that a sanitizer sees what is beyond. */
    float *x = malloc((size_t)info->elements * sizeof *x);
    void *target = malloc(info->target_bytes);
    dp_error err = {0};
    for (int64_t i = 0; x && target && i < info->samples; i++)
        fuzz_check(dp_dataset_read(dataset, i, 0, x, target, &err), &err);
    free(target);
    free(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char source[64];
    snprintf(source, sizeof source, "safetensors:%s", fuzz_framed_file(data, size));
    dp_data_config config = dp_data_defaults();
    config.source = source;
    dp_dataset *train, *valid;
    dp_error err = {0};
    dp_status status = dp_data_open(&config, &train, &valid, &err);
    fuzz_check(status, &err);
    read_all(train);
    read_all(valid);
    dp_dataset_free(train);
    dp_dataset_free(valid);
    return 0;
}
