/* What a run may not change when it continues, compared. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "train/train.h"

static dp_error err;

#define OK(call) ck_assert_msg((call) == DP_OK, "%s", err.message)

static void assert_says(const char *part)
{
    ck_assert_msg(strstr(err.message, part) != NULL, "\"%s\" is not in: %s", part, err.message);
}

static dp_status compare(const char *name, const char *was, const char *is)
{
    dp_metadata then[] = {{(char *)name, (char *)was}}, now[] = {{(char *)name, (char *)is}};
    const dp_settings before = {then, 1}, after = {now, 1};
    return dp_settings_compare(&before, &after, "here", &err);
}

/* However long names and values are, a difference is one and is shown. */
START_TEST(a_difference_is_named_as_far_as_there_is_room)
{
    static const char many[] =
        "1001,1002,1003,1004,1005,1006,1007,1008,1009,1010,1011,1012,1013,1014,1015,1016,"
        "1017,1018,1019,1020,1021,1022,1023,1024,1025,1026,1027,1028,1029,1030,1031,1032,"
        "1033,1034,1035,1036,1037,1038,1039,1040,1041,1042";
    char was[512], name[3000];
    OK(compare("x", "1", "1"));
    ck_assert_int_eq(compare("x", "1", "2"), DP_ERROR_MISMATCH);
    assert_says("x: 1 then, 2 now");
    snprintf(was, sizeof was, "{\"hidden\":[%.159s]}", many);
    ck_assert_int_eq(compare("model", was, "{\"hidden\":[5]}"), DP_ERROR_MISMATCH);
    assert_says("hidden of the model: [1001,1002,");
    assert_says(",1031,1032] then, [5] now");
    snprintf(was, sizeof was, "{\"hidden\":[%s]}", many);
    ck_assert_int_eq(compare("model", was, "{\"name\":\"mlp\"}"), DP_ERROR_MISMATCH);
    assert_says("name of the model: not set then, mlp now; hidden of the model: [1001,1002,");
    assert_says("1039,... then, not set now");
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    OK(compare(name, "1", "1"));
    ck_assert_int_eq(compare(name, "1", "2"), DP_ERROR_MISMATCH);
    assert_says("nnn: 1 then, 2 now");
}
END_TEST

START_TEST(of_many_differences_the_first_are_named)
{
    ck_assert_int_eq(
        compare("model", "{\"a\":1,\"b\":1,\"c\":1,\"d\":1}", "{\"a\":2,\"b\":2,\"c\":2,\"d\":2}"),
        DP_ERROR_MISMATCH);
    assert_says("; d of the model: 1 then, 2 now; give it");
    ck_assert_int_eq(compare("model", "{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1}", "{}"),
                     DP_ERROR_MISMATCH);
    assert_says("; d of the model: 1 then, not set now; and 2 more; give it");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("settings");
    TCase *t = tcase_create("settings");
    tcase_add_test(t, a_difference_is_named_as_far_as_there_is_room);
    tcase_add_test(t, of_many_differences_the_first_are_named);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
