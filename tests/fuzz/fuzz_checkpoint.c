/* A checkpoint as `eval` reads it: the metadata, the model it describes, then the weights; see
 * fuzz_framed_file. */
#include <stdlib.h>

#include "train/train.h"
#include "dptrain/model.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_ELEMENTS = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_framed_file(data, size);
    dp_model *model;
    dp_checkpoint_info info;
    dp_load_report report;
    dp_class_names names;
    dp_error err = {0};
    dp_status status = dp_checkpoint_open(path, &model, &info, &err);
    fuzz_check(status, &err);
    if (status == DP_OK && dp_model_elements(model) <= MOST_ELEMENTS) {
        dp_model_state state;
        if (dp_model_state_create(model, &state, &err) != DP_OK)
            abort();
        for (int partial = 0; partial < 2; partial++)
            fuzz_check(dp_weights_load(path, model, partial, &state, &report, &err), &err);
        dp_model_state_free(&state);
    }
    fuzz_check(dp_checkpoint_class_names(path, &names, &err), &err);
    dp_class_names_clear(&names);
    dp_model_free(model);
    return 0;
}
