/* Errors, host memory, and hand-overs between threads. */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread.h"

typedef struct pair {
    dp_signal there, back;
    int shared;
    int rounds;
} pair;

static void *echo(void *argument)
{
    pair *p = argument;
    for (int i = 1; i <= p->rounds; i++) {
        if (!dp_signal_wait(&p->there, (uint64_t)i))
            break;
        p->shared++; /* only ever touched by the side whose turn it is */
        dp_signal_post(&p->back, (uint64_t)i);
    }
    return NULL;
}

START_TEST(signals_hand_over_without_losing_any)
{
    const uint32_t spins[] = {0, 50000};
    for (int s = 0; s < 2; s++) {
        pair p = {.rounds = 2000};
        dp_error err = {0};
        pthread_t thread;
        ck_assert(dp_signal_init(&p.there, spins[s], &err) == DP_OK);
        ck_assert(dp_signal_init(&p.back, spins[s], &err) == DP_OK);
        ck_assert(dp_thread_start(&thread, "echo", echo, &p, &err) == DP_OK);
        for (int i = 1; i <= p.rounds; i++) {
            p.shared++;
            dp_signal_post(&p.there, (uint64_t)i);
            ck_assert(dp_signal_wait(&p.back, (uint64_t)i));
            ck_assert_int_eq(p.shared, 2 * i);
        }
        pthread_join(thread, NULL);
        ck_assert(dp_signal_reached(&p.back, 2000) && !dp_signal_reached(&p.back, 2001));
        dp_signal_destroy(&p.there);
        dp_signal_destroy(&p.back);
    }
}
END_TEST

START_TEST(closing_wakes_a_waiter)
{
    pair p = {.rounds = 2};
    dp_error err = {0};
    pthread_t thread;
    ck_assert(dp_signal_init(&p.there, 0, &err) == DP_OK);
    ck_assert(dp_signal_init(&p.back, 0, &err) == DP_OK);
    ck_assert(dp_thread_start(&thread, "echo", echo, &p, &err) == DP_OK);
    dp_signal_post(&p.there, 1);
    ck_assert(dp_signal_wait(&p.back, 1));
    dp_signal_close(&p.there);
    pthread_join(thread, NULL); /* hangs if the waiter slept on */
    ck_assert(!dp_signal_wait(&p.there, 2));
    dp_signal_destroy(&p.there);
    dp_signal_destroy(&p.back);
}
END_TEST

START_TEST(errors_say_where)
{
    dp_error err = {0};
    ck_assert_int_eq(dp_fail(&err, DP_ERROR_IO, "cannot read '%s'", "x"), DP_ERROR_IO);
    dp_error_prefix(&err, "layer %d", 3);
    ck_assert_str_eq(err.message, "layer 3: cannot read 'x'");
    ck_assert_int_eq(err.status, DP_ERROR_IO);
    ck_assert_int_eq(dp_fail(NULL, DP_ERROR_IO, "nobody listens"), DP_ERROR_IO);
    char *long_text = calloc(5000, 1);
    memset(long_text, 'a', 4999);
    dp_fail(&err, DP_ERROR_IO, "%s", long_text);
    dp_error_prefix(&err, "%s", long_text);
    ck_assert_uint_lt(strlen(err.message), sizeof err.message);
    free(long_text);
}
END_TEST

START_TEST(impossible_allocations_are_refused)
{
    dp_error err = {0};
    char *p = NULL;
    ck_assert_int_eq(dp_calloc(SIZE_MAX / 2, 4, "a test", &p, &err), DP_ERROR_MEMORY);
    ck_assert_ptr_null(p);
    ck_assert_ptr_nonnull(strstr(err.message, "for a test"));
    ck_assert_int_eq(dp_aligned_alloc(SIZE_MAX - 8, "a test", &p, &err), DP_ERROR_MEMORY);
    ck_assert(dp_calloc(4, 4, "a test", &p, &err) == DP_OK);
    ck_assert_int_eq(dp_realloc(&p, SIZE_MAX / 2, 4, "a test", &err), DP_ERROR_MEMORY);
    ck_assert_int_eq(p[15], 0); /* still there */
    dp_free(p);
    ck_assert(dp_aligned_alloc(100, "a test", &p, &err) == DP_OK);
    ck_assert_uint_eq((uintptr_t)p % 64, 0);
    dp_free(p);
}
END_TEST

START_TEST(at_least_one_core_is_usable)
{
    ck_assert_int_ge(dp_usable_cores(), 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("thread");
    TCase *t = tcase_create("thread");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, signals_hand_over_without_losing_any);
    tcase_add_test(t, closing_wakes_a_waiter);
    tcase_add_test(t, errors_say_where);
    tcase_add_test(t, impossible_allocations_are_refused);
    tcase_add_test(t, at_least_one_core_is_usable);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
