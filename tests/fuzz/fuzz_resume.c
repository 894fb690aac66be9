/* The description inside a state that a run continues from, as JSON by itself. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "train/train.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dp_run_state state = {0};
    dp_settings settings = {0};
    dp_error err = {0};
    char *text = malloc(size + 1);
    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    dp_status status = dp_run_state_parse(text, &state, &settings, &err);
    fuzz_check(status, &err);
    if (status == DP_OK && (state.epoch < 0 || state.batch < 0 || state.step < 0 || state.samples < 0))
        abort(); /* positions are counts */
    dp_settings_clear(&settings);
    free(text);
    return 0;
}
