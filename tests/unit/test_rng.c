/* Random numbers: the published vectors, and what is promised of each distribution. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/rng.h"

/* Known answers for philox4x32-10, from the test vectors of its authors' library. The purpose is the top byte
 * of the counter's second word. */
static const struct {
    uint64_t seed;
    uint32_t purpose, a, b;
    uint64_t block;
    uint32_t want[4];
} known[] = {
    {0, 0, 0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {UINT64_MAX,
     0xff,
     UINT32_MAX,
     UINT32_MAX,
     0x00ffffffffffffff,
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {0x299f31d0a4093822,
     0x85,
     0x13198a2e,
     0x03707344,
     0x00a308d3243f6a88,
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

START_TEST(philox_gives_the_published_numbers)
{
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        uint32_t out[4];
        dp_rng_block(known[k].seed, (dp_rng_purpose)known[k].purpose, known[k].a, known[k].b, known[k].block,
                     out);
        for (int w = 0; w < 4; w++)
            ck_assert_uint_eq(out[w], known[k].want[w]);
    }
}
END_TEST

START_TEST(each_part_of_the_address_matters)
{
    const uint32_t base = dp_rng_u32(1, DP_RNG_TEST, 2, 3, 4);
    ck_assert_uint_eq(dp_rng_u32(1, DP_RNG_TEST, 2, 3, 4), base);
    ck_assert_uint_ne(dp_rng_u32(0, DP_RNG_TEST, 2, 3, 4), base);
    ck_assert_uint_ne(dp_rng_u32(1 + (1ull << 32), DP_RNG_TEST, 2, 3, 4), base);
    ck_assert_uint_ne(dp_rng_u32(1, DP_RNG_ORDER, 2, 3, 4), base);
    ck_assert_uint_ne(dp_rng_u32(1, DP_RNG_TEST, 9, 3, 4), base);
    ck_assert_uint_ne(dp_rng_u32(1, DP_RNG_TEST, 2, 9, 4), base);
    ck_assert_uint_ne(dp_rng_u32(1, DP_RNG_TEST, 2, 3, 5), base);
    ck_assert_uint_ne(dp_rng_u32(1, DP_RNG_TEST, 2, 3, 4 + (1ull << 40)), base);
}
END_TEST

START_TEST(elements_are_words_of_blocks)
{
    for (uint64_t i = 0; i < 64; i++) {
        uint32_t block[4];
        dp_rng_block(5, DP_RNG_TEST, 6, 7, i / 4, block);
        ck_assert_uint_eq(dp_rng_u32(5, DP_RNG_TEST, 6, 7, i), block[i % 4]);
        ck_assert(dp_rng_uniform(5, DP_RNG_TEST, 6, 7, i) == (float)(block[i % 4] >> 8) / 16777216.0f);
    }
}
END_TEST

START_TEST(uniform_numbers_fill_their_interval)
{
    const int n = 100000;
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        float u = dp_rng_uniform(11, DP_RNG_TEST, 0, 0, (uint64_t)i);
        ck_assert(u >= 0.0f && u < 1.0f);
        sum += u;
        squares += (double)u * u;
    }
    ck_assert_double_eq_tol(sum / n, 0.5, 5 * sqrt(1.0 / 12 / n)); /* five deviations */
    ck_assert_double_eq_tol(squares / n, 1.0 / 3, 5 * sqrt(4.0 / 45 / n));
}
END_TEST

START_TEST(below_is_unbiased)
{
    const int n = 60000;
    int counts[6] = {0};
    for (int i = 0; i < n; i++) {
        uint64_t k = dp_rng_below(3, DP_RNG_TEST, 1, 0, (uint64_t)i, 6);
        ck_assert_uint_lt(k, 6);
        counts[k]++;
    }
    double chi2 = 0;
    for (int k = 0; k < 6; k++)
        chi2 += (counts[k] - n / 6.0) * (counts[k] - n / 6.0) / (n / 6.0);
    ck_assert_double_lt(chi2, 25.7); /* 5 degrees of freedom: exceeded once in 10,000 seeds */
    for (uint64_t i = 0; i < 100; i++)
        ck_assert_uint_eq(dp_rng_below(3, DP_RNG_TEST, 1, 0, i, 1), 0);
}
END_TEST

/* Just over half of all 64-bit numbers: nearly every second draw is rejected, and what comes then is the next
 * draw, not the rejected one modulo n. */
START_TEST(below_draws_again_instead_of_folding)
{
    const uint64_t n = (1ull << 63) + 1;
    int first = 0, second = 0, later = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        uint32_t words[4];
        dp_rng_block(8, DP_RNG_TEST, 0, 0, i, words);
        const uint64_t draws[2] = {(uint64_t)words[1] << 32 | words[0], (uint64_t)words[3] << 32 | words[2]};
        uint64_t k = dp_rng_below(8, DP_RNG_TEST, 0, 0, i, n);
        ck_assert_uint_lt(k, n);
        if (draws[0] < n) {
            ck_assert_uint_eq(k, draws[0]);
            first++;
        } else if (draws[1] < n) {
            ck_assert_uint_eq(k, draws[1]);
            second++;
        } else {
            ck_assert_uint_ne(k, draws[0] % n);
            ck_assert_uint_ne(k, draws[1] % n);
            later++;
        }
    }
    ck_assert(first > 850 && first < 1150);
    ck_assert(second > 400 && second < 600);
    ck_assert(later > 400 && later < 600);
}
END_TEST

START_TEST(normal_numbers_have_the_right_moments)
{
    const int n = 200000;
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    int within = 0;
    for (int i = 0; i < n; i++) {
        double z = dp_rng_normal(21, DP_RNG_TEST, 4, 0, (uint64_t)i);
        ck_assert(isfinite(z));
        m1 += z;
        m2 += z * z;
        m3 += z * z * z;
        m4 += z * z * z * z;
        within += fabs(z) < 1;
    }
    ck_assert_double_eq_tol(m1 / n, 0, 5 * sqrt(1.0 / n));
    ck_assert_double_eq_tol(m2 / n, 1, 5 * sqrt(2.0 / n));
    ck_assert_double_eq_tol(m3 / n, 0, 5 * sqrt(15.0 / n));
    ck_assert_double_eq_tol(m4 / n, 3, 5 * sqrt(96.0 / n));
    ck_assert_double_eq_tol((double)within / n, 0.682689, 5 * sqrt(0.217 / n));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rng");
    TCase *t = tcase_create("rng");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, philox_gives_the_published_numbers);
    tcase_add_test(t, each_part_of_the_address_matters);
    tcase_add_test(t, elements_are_words_of_blocks);
    tcase_add_test(t, uniform_numbers_fill_their_interval);
    tcase_add_test(t, below_is_unbiased);
    tcase_add_test(t, below_draws_again_instead_of_folding);
    tcase_add_test(t, normal_numbers_have_the_right_moments);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
