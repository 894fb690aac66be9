#include "support.h"

#include <stdlib.h>

int main(void)
{
    Suite *suite = suite_create("cuda_emulation");
    suite_add_tcase(suite, runtime_tests());
    suite_add_tcase(suite, memory_tests());
    suite_add_tcase(suite, stream_tests());
    suite_add_tcase(suite, kernel_tests());
    suite_add_tcase(suite, peer_tests());
    suite_add_tcase(suite, library_tests());
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_FORK); /* whatever CK_FORK says: the tests need it */
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
