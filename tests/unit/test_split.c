/* How a batch is split: torch.chunk's table, balanced splits and shares. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "dptrain/engine.h"

static void expect(dp_split_kind kind, const double *shares, int devices, int64_t batch, int used,
                   const int64_t *sizes)
{
    int64_t got[64];
    ck_assert_int_eq(dp_split_batch(kind, shares, devices, batch, got), used);
    for (int k = 0; k < devices; k++)
        ck_assert_msg(got[k] == sizes[k], "batch %ld over %d devices: device %d got %ld, not %ld",
                      (long)batch, devices, k, (long)got[k], (long)sizes[k]);
}

START_TEST(chunk_is_torch_chunk)
{
    expect(DP_SPLIT_CHUNK, NULL, 4, 1, 1, (int64_t[]){1, 0, 0, 0});
    expect(DP_SPLIT_CHUNK, NULL, 2, 3, 2, (int64_t[]){2, 1});
    expect(DP_SPLIT_CHUNK, NULL, 4, 5, 3, (int64_t[]){2, 2, 1, 0});
    expect(DP_SPLIT_CHUNK, NULL, 4, 10, 4, (int64_t[]){3, 3, 3, 1});
    expect(DP_SPLIT_CHUNK, NULL, 8, 9, 5, (int64_t[]){2, 2, 2, 2, 1, 0, 0, 0});
    expect(DP_SPLIT_CHUNK, NULL, 8, 17, 6, (int64_t[]){3, 3, 3, 3, 3, 2, 0, 0});
    expect(DP_SPLIT_CHUNK, NULL, 3, 16, 3, (int64_t[]){6, 6, 4});
}
END_TEST

START_TEST(every_row_is_given_once)
{
    for (int kind = DP_SPLIT_CHUNK; kind <= DP_SPLIT_SHARES; kind++)
        for (int n = 1; n <= 64; n++)
            for (int64_t b = 1; b <= 257; b++) {
                double shares[64];
                int64_t sizes[64], sum = 0;
                for (int k = 0; k < n; k++)
                    shares[k] = 1 + k % 3;
                int used = dp_split_batch((dp_split_kind)kind, shares, n, b, sizes);
                for (int k = 0; k < n; k++) {
                    ck_assert_int_ge(sizes[k], 0);
                    sum += sizes[k];
                    used -= sizes[k] > 0;
                }
                ck_assert_int_eq(sum, b);
                ck_assert_int_eq(used, 0);
            }
}
END_TEST

START_TEST(balanced_differs_by_one)
{
    expect(DP_SPLIT_BALANCED, NULL, 4, 10, 4, (int64_t[]){3, 3, 2, 2});
    expect(DP_SPLIT_BALANCED, NULL, 4, 5, 4, (int64_t[]){2, 1, 1, 1});
    expect(DP_SPLIT_BALANCED, NULL, 4, 2, 2, (int64_t[]){1, 1, 0, 0});
}
END_TEST

START_TEST(shares_by_largest_remainder)
{
    expect(DP_SPLIT_SHARES, (double[]){1, 2, 2}, 3, 10, 3, (int64_t[]){2, 4, 4});
    expect(DP_SPLIT_SHARES, (double[]){1, 1}, 2, 3, 2, (int64_t[]){2, 1}); /* a tie: the earlier device */
    expect(DP_SPLIT_SHARES, (double[]){1, 2, 2}, 3, 7, 3, (int64_t[]){1, 3, 3});
    expect(DP_SPLIT_SHARES, (double[]){0, 1}, 2, 5, 1, (int64_t[]){0, 5});
    expect(DP_SPLIT_SHARES, (double[]){0.1, 0.1, 0.1}, 3, 4, 3, (int64_t[]){2, 1, 1});
}
END_TEST

int main(void)
{
    Suite *s = suite_create("split");
    TCase *t = tcase_create("split");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, chunk_is_torch_chunk);
    tcase_add_test(t, every_row_is_given_once);
    tcase_add_test(t, balanced_differs_by_one);
    tcase_add_test(t, shares_by_largest_remainder);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
