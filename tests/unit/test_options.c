/* The option table and the values it accepts. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static dp_error err;

/* Parses arguments that end with NULL. */
static dp_status parse(cli_command command, cli_options *out, const char *const *args)
{
    int count = 0;
    while (args[count])
        count++;
    return cli_parse(command, count, (char **)args, out, &err);
}

#define PARSE(out, ...) parse(CLI_TRAIN, out, (const char *const[]){__VA_ARGS__, NULL})

static cli_options with(cli_option option, const char *value)
{
    cli_options o = {.command = CLI_TRAIN};
    o.value[option] = value;
    return o;
}

START_TEST(values_come_after_a_space_or_an_equals_sign)
{
    cli_options o;
    ck_assert_int_eq(PARSE(&o, "--lr", "0.1", "--batch_size=8", "--model_dir", "a_b", "--quiet"), DP_OK);
    ck_assert_str_eq(o.value[OPT_LR], "0.1");
    ck_assert_str_eq(o.value[OPT_BATCH_SIZE], "8");
    ck_assert_str_eq(o.value[OPT_MODEL_DIR], "a_b"); /* only names change their underscores */
    ck_assert(cli_given(&o, OPT_QUIET));
    ck_assert(!cli_given(&o, OPT_OVERWRITE));
    ck_assert_int_eq(PARSE(&o, "--init=a=b", "--save", "--lr"), DP_OK); /* a value may begin with -- */
    ck_assert_str_eq(o.value[OPT_INIT], "a=b");
    ck_assert_str_eq(o.value[OPT_SAVE], "--lr");
    ck_assert_int_eq(PARSE(&o, "--lr", "1", "--lr=2", "--lr", "3"), DP_OK);
    ck_assert_str_eq(o.value[OPT_LR], "3");
}
END_TEST

START_TEST(options_belong_to_commands)
{
    cli_options o;
    ck_assert_int_eq(parse(CLI_EVAL, &o, (const char *const[]){"--json", "--init", "f", NULL}), DP_OK);
    ck_assert_int_eq(parse(CLI_EVAL, &o, (const char *const[]){"--lr", "1", NULL}), DP_ERROR_USAGE);
    ck_assert_int_eq(PARSE(&o, "--json"), DP_ERROR_USAGE);
    ck_assert_str_eq(err.message, "unknown option '--json'; --help lists the options");
}
END_TEST

/* For each text: its value, or NAN where it is none. */
START_TEST(integers_are_strict)
{
    static const struct {
        const char *text;
        double value;
    } cases[] = {{"0", 0},      {"007", 7},   {"9223372036854775807", 9223372036854775807.0},
                 {"-3", -3},    {"", NAN},    {" 1", NAN},
                 {"1 ", NAN},   {"+1", NAN},  {"1e3", NAN},
                 {"0x10", NAN}, {"1,2", NAN}, {"9223372036854775808", NAN},
                 {"--1", NAN},  {"-", NAN},   {"one", NAN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_options o = with(OPT_SEED, cases[i].text);
        int64_t out = 42;
        dp_status status = cli_integer(&o, OPT_SEED, INT64_MIN, INT64_MAX, &out, &err);
        ck_assert_msg((status == DP_OK) == !isnan(cases[i].value), "'%s'", cases[i].text);
        if (status == DP_OK)
            ck_assert_double_eq((double)out, cases[i].value);
        else
            ck_assert_int_eq(out, 42);
    }
    cli_options none = {.command = CLI_TRAIN};
    int64_t out = 42;
    ck_assert_int_eq(cli_integer(&none, OPT_SEED, 0, 1, &out, &err), DP_OK);
    ck_assert_int_eq(out, 42);
}
END_TEST

START_TEST(numbers_are_strict)
{
    static const struct {
        const char *text;
        double value;
    } cases[] = {{"0.5", 0.5}, {".5", 0.5},    {"5.", 5},    {"1e-3", 1e-3}, {"-2", -2},    {"", NAN},
                 {"e5", NAN},  {"1e", NAN},    {"nan", NAN}, {"inf", NAN},   {"-inf", NAN}, {"0x1", NAN},
                 {"1f", NAN},  {"1e400", NAN}, {"1,5", NAN}, {"+1", NAN},    {" 1", NAN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_options o = with(OPT_LR, cases[i].text);
        double out = 42;
        dp_status status = cli_number(&o, OPT_LR, -FLT_MAX, FLT_MAX, &out, &err);
        ck_assert_msg((status == DP_OK) == !isnan(cases[i].value), "'%s'", cases[i].text);
        ck_assert_double_eq(out, status == DP_OK ? cases[i].value : 42);
    }
}
END_TEST

START_TEST(bounds_may_exclude_their_end)
{
    cli_options zero = with(OPT_LR, "0"), small = with(OPT_LR, "1e-300"), one = with(OPT_MOMENTUM, "1"),
                below = with(OPT_MOMENTUM, "0.9999999999");
    double out;
    ck_assert_int_eq(cli_number(&zero, OPT_LR, CLI_ABOVE_0, FLT_MAX, &out, &err), DP_ERROR_USAGE);
    ck_assert_str_eq(err.message, "--lr '0': a number above 0 is needed");
    ck_assert_int_eq(cli_number(&small, OPT_LR, CLI_ABOVE_0, FLT_MAX, &out, &err), DP_OK);
    ck_assert_int_eq(cli_number(&one, OPT_MOMENTUM, 0, CLI_BELOW_1, &out, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(cli_number(&below, OPT_MOMENTUM, 0, CLI_BELOW_1, &out, &err), DP_OK);
}
END_TEST

START_TEST(lists_have_a_limit_and_no_gaps)
{
    int64_t out[3];
    int count;
    cli_options o = with(OPT_DEVICE_IDS, "2,0,1");
    ck_assert_int_eq(cli_integers(&o, OPT_DEVICE_IDS, 0, 9, 3, out, &count, &err), DP_OK);
    ck_assert_int_eq(count, 3);
    ck_assert(out[0] == 2 && out[1] == 0 && out[2] == 1);
    static const char *const wrong[] = {"", ",", "1,", ",1", "1,,2", "1,2,3,4", "1,10", "1,a", "1 2", "1;2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        o = with(OPT_DEVICE_IDS, wrong[i]);
        ck_assert_msg(cli_integers(&o, OPT_DEVICE_IDS, 0, 9, 3, out, &count, &err) == DP_ERROR_USAGE, "'%s'",
                      wrong[i]);
    }
    o = (cli_options){.command = CLI_TRAIN};
    ck_assert_int_eq(cli_integers(&o, OPT_DEVICE_IDS, 0, 9, 3, out, &count, &err), DP_OK);
    ck_assert_int_eq(count, 0);
}
END_TEST

/* Nothing that can be typed makes the parser crash or read beyond its text. */
START_TEST(random_arguments_are_parsed_or_refused)
{
    static const char letters[] = "--==__-batchsizelr0123456789.,e \n%\xff";
    unsigned state = 12345;
    for (int round = 0; round < 20000; round++) {
        char text[3][24], *args[4] = {NULL};
        int count = 1 + round % 3;
        for (int i = 0; i < count; i++) {
            state = state * 1664525U + 1013904223U;
            size_t n = (state >> 8) % sizeof text[0];
            for (size_t k = 0; k < n; k++) {
                state = state * 1664525U + 1013904223U;
                text[i][k] = letters[(state >> 8) % (sizeof letters - 1)];
            }
            text[i][n] = 0;
            if (i == 0 && n >= 2)
                memcpy(text[i], "--", 2);
            args[i] = strdup(text[i]);
        }
        cli_options o;
        dp_status status = cli_parse(CLI_TRAIN, count, args, &o, &err);
        ck_assert(status == DP_OK || status == DP_ERROR_USAGE);
        if (status == DP_ERROR_USAGE)
            ck_assert_uint_gt(strlen(err.message), 0);
        for (int i = 0; i < count; i++)
            free(args[i]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("options");
    TCase *c = tcase_create("options");
    tcase_add_test(c, values_come_after_a_space_or_an_equals_sign);
    tcase_add_test(c, options_belong_to_commands);
    tcase_add_test(c, integers_are_strict);
    tcase_add_test(c, numbers_are_strict);
    tcase_add_test(c, bounds_may_exclude_their_end);
    tcase_add_test(c, lists_have_a_limit_and_no_gaps);
    tcase_add_test(c, random_arguments_are_parsed_or_refused);
    suite_add_tcase(s, c);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
