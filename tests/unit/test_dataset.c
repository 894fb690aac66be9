/* Data sets: the held-out share, the order of an epoch, descriptions. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "data/order.h"
#include "data/storage.h"
#include "dataset.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "scratch.h"

/* Opens 100 samples whose single feature is their number; sets held[number] for those held out. */
static void split(uint64_t seed, double share, bool held[100])
{
    float numbers[100], x;
    int64_t none[100] = {0};
    bool seen[100] = {false};
    int32_t label;
    for (int i = 0; i < 100; i++)
        numbers[i] = (float)i;
    write_tensors(tensor("x", DP_F32, SHAPE(100, 1), numbers), tensor("y", DP_I64, SHAPE(100), none));
    dp_data_config config = file_config();
    config.seed = seed;
    config.valid_split = share;
    open_ok(&config);
    memset(held, 0, 100 * sizeof *held);
    dp_dataset *const parts[] = {train, valid};
    for (int part = 0; part < 2; part++) {
        float before = -1;
        for (int64_t i = 0; i < dp_dataset_info_of(parts[part])->samples; i++) {
            ck_assert(dp_dataset_read(parts[part], i, 0, &x, &label, NULL) == DP_OK);
            ck_assert(!seen[(int)x]); /* each sample in one part, once */
            seen[(int)x] = true;
            held[(int)x] = part == 1;
            ck_assert(x > before); /* in the order of the file */
            before = x;
        }
    }
    for (int i = 0; i < 100; i++)
        ck_assert(seen[i]);
    dp_dataset_free(valid); /* the other order than elsewhere */
    ck_assert(dp_dataset_read(train, 0, 0, &x, &label, NULL) == DP_OK);
    dp_dataset_free(train);
}

static int how_many(const bool held[100])
{
    int n = 0;
    for (int i = 0; i < 100; i++)
        n += held[i];
    return n;
}

START_TEST(the_share_is_a_seeded_permutation)
{
    bool a[100], b[100];
    split(0, 0.15, a);
    ck_assert_int_eq(how_many(a), 15);
    int in_front = 0;
    for (int i = 0; i < 50; i++)
        in_front += a[i];
    ck_assert(in_front > 1 && in_front < 14); /* not the file's end or beginning */
    split(0, 0.15, b);
    ck_assert_int_eq(memcmp(a, b, sizeof a), 0);
    split(1, 0.15, b);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    split(0, 0.001, b); /* both parts have at least one */
    ck_assert_int_eq(how_many(b), 1);
    split(0, 0.9999, b);
    ck_assert_int_eq(how_many(b), 99);
    split(0, 0.5, b);
    ck_assert_int_eq(how_many(b), 50);
    for (int i = 0; i < 100; i++)
        ck_assert(b[i] || !a[i]); /* a larger share holds the smaller one */
}
END_TEST

START_TEST(shares_that_leave_nothing_are_refused)
{
    dp_data_config config = from("synthetic:1");
    open_fails(&config, DP_ERROR_USAGE, "use --valid-split 0");
    config.valid_split = 0;
    open_ok(&config);
    ck_assert_str_eq(info->description, "synthetic:1, 1 image 1x28x28, 10 classes");
    close_both();
    const double bad[] = {-0.1, 1, 1.5, NAN, INFINITY};
    for (int i = 0; i < 5; i++) {
        config.valid_split = bad[i];
        open_fails(&config, DP_ERROR_USAGE, "must be at least 0 and below 1");
    }
}
END_TEST

START_TEST(orders_are_permutations)
{
    enum { N = 1000 };
    int64_t a[N], b[N];
    bool seen[N] = {false};
    dp_order_of_epoch(a, N, 5, 0);
    for (int i = 0; i < N; i++) {
        ck_assert(a[i] >= 0 && a[i] < N && !seen[a[i]]);
        seen[a[i]] = true;
    }
    dp_order_of_epoch(b, N, 5, 0);
    ck_assert_int_eq(memcmp(a, b, sizeof a), 0);
    dp_order_of_epoch(b, N, 5, 1);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    dp_order_of_epoch(b, N, 6, 0);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    dp_order_of_epoch(b, N, 5, 1ll << 32); /* epochs do not wrap around */
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    dp_order_of_split(b, N, 5);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    /* Each of the six orders of three comes up about as often. */
    int counts[27] = {0}, orders = 0;
    for (int epoch = 0; epoch < 6000; epoch++) {
        dp_order_of_epoch(a, 3, 0, epoch);
        counts[a[0] * 9 + a[1] * 3 + a[2]]++;
    }
    for (int i = 0; i < 27; i++) {
        orders += counts[i] > 0;
        ck_assert(counts[i] == 0 || (counts[i] > 850 && counts[i] < 1150));
    }
    ck_assert_int_eq(orders, 6);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("dataset");
    TCase *t = tcase_create("dataset");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    tcase_add_test(t, the_share_is_a_seeded_permutation);
    tcase_add_test(t, shares_that_leave_nothing_are_refused);
    tcase_add_test(t, orders_are_permutations);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
