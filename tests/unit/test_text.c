/* Nearest names, patterns, and numbers for people. */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

static const char *const names[] = {"linear", "mlp", "lenet", "batch-size", "batch-per-device", "momentum"};
static const size_t count = sizeof names / sizeof *names;

START_TEST(typing_mistakes_find_their_name)
{
    ck_assert_str_eq(dp_nearest_name("lenet", names, count), "lenet");
    ck_assert_str_eq(dp_nearest_name("lennet", names, count), "lenet"); /* one too many */
    ck_assert_str_eq(dp_nearest_name("lene", names, count), "lenet");   /* one too few */
    ck_assert_str_eq(dp_nearest_name("lemet", names, count), "lenet");  /* another one */
    ck_assert_str_eq(dp_nearest_name("leent", names, count), "lenet");  /* a swap counts once */
    ck_assert_str_eq(dp_nearest_name("LeNet", names, count), "lenet");  /* case does not count */
    ck_assert_str_eq(dp_nearest_name("ml", names, count), "mlp");
    ck_assert_str_eq(dp_nearest_name("batchsize", names, count), "batch-size");
    ck_assert_str_eq(dp_nearest_name("batch-siez", names, count), "batch-size");
    ck_assert_str_eq(dp_nearest_name("mom", names, count), "momentum"); /* the only one that begins so */
}
END_TEST

START_TEST(what_is_far_off_finds_none)
{
    ck_assert_ptr_null(dp_nearest_name("", names, count));
    ck_assert_ptr_null(dp_nearest_name("x", names, count));
    ck_assert_ptr_null(dp_nearest_name("resnet50", names, count));
    ck_assert_ptr_null(dp_nearest_name("eltne", names, count));  /* more than one swap */
    ck_assert_ptr_null(dp_nearest_name("l", names, count));      /* begins two names */
    ck_assert_ptr_null(dp_nearest_name("batch-", names, count)); /* so does this */
    ck_assert_ptr_null(dp_nearest_name("lenet", names, 0));
    char *endless = malloc(100001);
    memset(endless, 'l', 100000);
    endless[100000] = '\0';
    ck_assert_ptr_null(dp_nearest_name(endless, names, count));
    const char *const long_names[] = {endless, "mlp"};
    ck_assert_ptr_eq(dp_nearest_name("lllll", long_names, 2), endless);
    free(endless);
}
END_TEST

START_TEST(the_nearest_of_several_wins)
{
    const char *const close[] = {"abcdefghx", "abcdefghi", "abcdefghi2"};
    ck_assert_str_eq(dp_nearest_name("abcdefghi", close, 3), "abcdefghi");
    ck_assert_str_eq(dp_nearest_name("abcdefgh", close, 3), "abcdefghx"); /* the first of equals */
}
END_TEST

START_TEST(patterns_match_whole_names)
{
    ck_assert(dp_pattern_matches("conv1.weight", "conv1.weight"));
    ck_assert(!dp_pattern_matches("conv1", "conv1.weight"));
    ck_assert(!dp_pattern_matches("conv1.weight", "conv1"));
    ck_assert(dp_pattern_matches("conv*", "conv1.weight"));
    ck_assert(dp_pattern_matches("*", "") && dp_pattern_matches("**", "a"));
    ck_assert(dp_pattern_matches("*.weight", "layer1.0.conv1.weight"));
    ck_assert(!dp_pattern_matches("*.weight", "layer1.0.conv1.bias"));
    ck_assert(dp_pattern_matches("layer?.*.bias", "layer1.0.conv1.bias"));
    ck_assert(!dp_pattern_matches("layer?.*", "layer10.bias"));
    ck_assert(dp_pattern_matches("*ab*ab", "abaabab"));
    ck_assert(!dp_pattern_matches("*ab*abc", "abaabab"));
    ck_assert(!dp_pattern_matches("?", "") && !dp_pattern_matches("", "a") && dp_pattern_matches("", ""));
    ck_assert(!dp_pattern_matches("[a]", "a") && dp_pattern_matches("[a]", "[a]")); /* no brackets */
}
END_TEST

START_TEST(a_hostile_pattern_takes_no_time)
{
    char pattern[401], name[2001];
    for (int i = 0; i < 400; i += 2)
        memcpy(pattern + i, "*a", 2);
    memcpy(pattern + 398, "*b", 3);
    memset(name, 'a', 2000);
    name[2000] = '\0';
    ck_assert(!dp_pattern_matches(pattern, name));
}
END_TEST

static const char *counted(int64_t n)
{
    static char buffer[40];
    return dp_format_count(n, buffer, sizeof buffer);
}

START_TEST(counts_are_grouped)
{
    ck_assert_str_eq(counted(0), "0");
    ck_assert_str_eq(counted(999), "999");
    ck_assert_str_eq(counted(1000), "1,000");
    ck_assert_str_eq(counted(1234567), "1,234,567");
    ck_assert_str_eq(counted(-999), "-999");
    ck_assert_str_eq(counted(-123456), "-123,456");
    ck_assert_str_eq(counted(INT64_MAX), "9,223,372,036,854,775,807");
    ck_assert_str_eq(counted(INT64_MIN), "-9,223,372,036,854,775,808");
    char small[4];
    ck_assert_str_eq(dp_format_count(1234567, small, sizeof small), "1,2");
}
END_TEST

static const char *rated(double rate)
{
    static char buffer[40];
    return dp_format_rate(rate, buffer, sizeof buffer);
}

START_TEST(rates_have_three_digits)
{
    ck_assert_str_eq(rated(0), "0.00");
    ck_assert_str_eq(rated(1.413), "1.41");
    ck_assert_str_eq(rated(9.994), "9.99");
    ck_assert_str_eq(rated(9.996), "10.0");
    ck_assert_str_eq(rated(14.13), "14.1");
    ck_assert_str_eq(rated(99.94), "99.9");
    ck_assert_str_eq(rated(99.96), "100");
    ck_assert_str_eq(rated(1234.5), "1,235");
}
END_TEST

static const char *sized(uint64_t bytes)
{
    static char buffer[40];
    return dp_format_bytes(bytes, buffer, sizeof buffer);
}

START_TEST(bytes_are_decimal)
{
    ck_assert_str_eq(sized(0), "0 B");
    ck_assert_str_eq(sized(999), "999 B");
    ck_assert_str_eq(sized(1000), "1.0 kB");
    ck_assert_str_eq(sized(12345678), "12.3 MB");
    ck_assert_str_eq(sized(999949), "999.9 kB");
    ck_assert_str_eq(sized(999950), "1.0 MB"); /* never 1000.0 kB */
    ck_assert_str_eq(sized(150000000000), "150.0 GB");
    ck_assert_str_eq(sized(UINT64_MAX), "18.4 EB");
}
END_TEST

START_TEST(utf8_is_told_from_other_bytes)
{
    static const char *const sound[] = {
        "",    "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf",
        "\x7f"};
    static const char *const unsound[] = {"\x80",
                                          "\xff",
                                          "\xc3",
                                          "\xc3(",
                                          "\xc1\xbf",
                                          "\xe0\x9f\xbf",
                                          "\xe2\x82",
                                          "\xed\xa0\x80",
                                          "\xf0\x8f\xbf\xbf",
                                          "\xf4\x90\x80\x80",
                                          "\xf8\x88\x80\x80\x80"};
    for (size_t i = 0; i < sizeof sound / sizeof *sound; i++)
        ck_assert_msg(dp_is_utf8(sound[i]), "sound text %zu", i);
    for (size_t i = 0; i < sizeof unsound / sizeof *unsound; i++)
        ck_assert_msg(!dp_is_utf8(unsound[i]), "unsound text %zu", i);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("text");
    TCase *t = tcase_create("text");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, utf8_is_told_from_other_bytes);
    tcase_add_test(t, typing_mistakes_find_their_name);
    tcase_add_test(t, what_is_far_off_finds_none);
    tcase_add_test(t, the_nearest_of_several_wins);
    tcase_add_test(t, patterns_match_whole_names);
    tcase_add_test(t, a_hostile_pattern_takes_no_time);
    tcase_add_test(t, counts_are_grouped);
    tcase_add_test(t, rates_have_three_digits);
    tcase_add_test(t, bytes_are_decimal);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
