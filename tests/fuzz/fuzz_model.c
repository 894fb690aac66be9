/* A model's description, the JSON in a checkpoint's metadata. */
#include <stdlib.h>
#include <string.h>

#include "dptrain/model.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    dp_model *model;
    dp_error err = {0};
    dp_status status = dp_model_from_description(text, &model, &err);
    fuzz_check(status, &err);
    if (status == DP_OK) {
        /* What was read is what is written, and reads as the same again. */
        dp_model *again;
        if (dp_model_from_description(dp_model_description(model), &again, &err) != DP_OK ||
            strcmp(dp_model_description(again), dp_model_description(model)) != 0 ||
            dp_model_elements(again) != dp_model_elements(model))
            abort();
        dp_model_free(again);
    }
    dp_model_free(model);
    free(text);
    return 0;
}
