/* The IDX reader, raw and gzip-compressed. */
#include "io/idx.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dp_idx idx;
    dp_error err = {0};
    dp_status status = dp_idx_parse(data, size, "input", &idx, &err);
    fuzz_check(status, &err);
    volatile uint8_t seen = 0;
    for (size_t i = 0; i < idx.bytes; i++)
        seen = idx.data[i];
    (void)seen;
    dp_idx_clear(&idx);
    return 0;
}
