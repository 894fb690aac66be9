/* Copies past the caches, at all distances from a line. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/internal.h"

enum { LONGEST = 8192, EDGE = 64 };

static const size_t lengths[] = {0, 1, 4, 63, 64, 65, 512, 4096, 4096 + 63};

START_TEST(every_byte_and_none_beside)
{
    static const size_t shifts[][2] = {{0, 0}, {4, 0}, {0, 4}, {1, 63}, {63, 1}, {32, 16}};
    unsigned char *from = malloc(LONGEST), *to = malloc(LONGEST);
    ck_assert(from && to);
    for (size_t i = 0; i < LONGEST; i++)
        from[i] = (unsigned char)(i * 131 >> 3);
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++) {
        const unsigned char *source = from + shifts[i][0];
        unsigned char *target = to + EDGE + shifts[i][1];
        size_t length = lengths[_i];
        memset(to, 0xa5, LONGEST);
        dp_cpu_stream(target, source, length);
        dp_cpu_stream_end();
        ck_assert(memcmp(target, source, length) == 0);
        ck_assert_int_eq(target[-1], 0xa5);
        ck_assert_int_eq(target[length], 0xa5);
    }
    free(from);
    free(to);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("copies past the caches");
    TCase *t = tcase_create("copies");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, every_byte_and_none_beside, 0, sizeof lengths / sizeof *lengths);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
