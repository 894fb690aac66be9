/* The command line as a user meets it: exit codes, texts, files. With EMULATED_TOOLS set (to
 * build/emulated/tools) it is build/emulated/dptrain that is run, and what needs GPUs that is tested. */
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"

int main(void)
{
    if (!harness_find_program())
        return EXIT_FAILURE;
    const char *tools = getenv("EMULATED_TOOLS");
    if (tools && !emulated_tools_found(tools)) {
        fprintf(stderr, "test_cli: no folder '%s': EMULATED_TOOLS\n", tools);
        return EXIT_FAILURE;
    }
    SRunner *runner = srunner_create(tools ? emulated_suite() : usage_suite());
    if (!tools) {
        srunner_add_suite(runner, train_suite());
        srunner_add_suite(runner, files_suite());
        srunner_add_suite(runner, weights_suite());
        srunner_add_suite(runner, convert_suite());
        srunner_add_suite(runner, promises_suite());
        srunner_add_suite(runner, bench_suite());
        srunner_add_suite(runner, explain_suite());
        srunner_add_suite(runner, input_suite());
        srunner_add_suite(runner, memory_suite());
        srunner_add_suite(runner, pictures_suite());
        srunner_add_suite(runner, resume_suite());
    }
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
