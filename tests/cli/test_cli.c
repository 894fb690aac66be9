/* The command line as a user meets it: exit codes, texts, files. */
#include <stdlib.h>

#include "harness.h"

int main(void)
{
    if (!harness_find_program())
        return EXIT_FAILURE;
    SRunner *runner = srunner_create(usage_suite());
    srunner_add_suite(runner, train_suite());
    srunner_add_suite(runner, files_suite());
    srunner_add_suite(runner, weights_suite());
    srunner_add_suite(runner, promises_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
