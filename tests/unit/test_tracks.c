/* Rings of spans between a thread that adds and the coordinator who takes. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "base/tracks.h"

enum { MOST = 200000 };

typedef struct taken {
    int announced, count, fail_after;
    dp_span last[MOST];
} taken;

static dp_status announce(void *user, int index, const dp_track *track, dp_error *err)
{
    (void)err;
    taken *t = user;
    ck_assert_int_eq(index, t->announced);
    ck_assert_str_eq(track->group, "group");
    t->announced++;
    return DP_OK;
}

static dp_status take(void *user, int index, const dp_span *span, dp_error *err)
{
    (void)index;
    taken *t = user;
    if (t->fail_after > 0 && t->count == t->fail_after)
        return dp_fail(err, DP_ERROR_IO, "full");
    ck_assert_int_lt(t->count, MOST);
    t->last[t->count++] = *span;
    return DP_OK;
}

static taken *new_taken(void)
{
    taken *t = calloc(1, sizeof *t);
    ck_assert_ptr_nonnull(t);
    return t;
}

START_TEST(spans_nest_and_come_in_the_order_of_their_begins)
{
    taken *t = new_taken();
    dp_trace trace = {.sink = {announce, take, t}};
    dp_track *track;
    ck_assert(dp_track_create(&trace, "group", "name", 8, &track, NULL) == DP_OK);
    ck_assert_int_eq(t->announced, 1);
    dp_track_push(track, "outer", NULL, 7, -1);
    dp_track_push(track, "inner", "detail", 7, 3);
    dp_track_pop(track);
    ck_assert(dp_trace_flush(&trace, NULL) == DP_OK);
    ck_assert_int_eq(t->count, 0); /* the outer one has no end yet */
    dp_track_add(track, &(dp_span){.name = "added", .begin = 1, .end = 2, .arrow_in = 5});
    dp_track_pop(track);
    dp_track_pop(track); /* one too many does nothing */
    ck_assert(dp_trace_flush(&trace, NULL) == DP_OK);
    ck_assert_int_eq(t->count, 3);
    ck_assert_str_eq(t->last[0].name, "outer");
    ck_assert_str_eq(t->last[1].name, "inner");
    ck_assert_str_eq(t->last[1].detail, "detail");
    ck_assert_int_eq(t->last[1].bucket, 3);
    ck_assert(t->last[0].begin <= t->last[1].begin && t->last[1].begin <= t->last[1].end &&
              t->last[1].end <= t->last[0].end);
    ck_assert_uint_eq(t->last[2].arrow_in, 5);
    ck_assert_uint_eq(dp_trace_dropped(&trace), 0);
    dp_trace_clear(&trace);
    free(t);
}
END_TEST

START_TEST(what_does_not_fit_is_counted)
{
    taken *t = new_taken();
    dp_trace trace = {.sink = {announce, take, t}};
    dp_track *track;
    ck_assert(dp_track_create(&trace, "group", "name", 4, &track, NULL) == DP_OK);
    dp_track_push(track, "outer", NULL, 1, -1);
    for (int i = 0; i < 5; i++) {
        dp_track_push(track, "inner", NULL, 1, i);
        dp_track_pop(track);
    }
    dp_track_pop(track);
    ck_assert_uint_eq(dp_trace_dropped(&trace), 2);
    ck_assert(dp_trace_flush(&trace, NULL) == DP_OK);
    ck_assert_int_eq(t->count, 4);
    for (int i = 0; i < 4; i++)
        ck_assert(t->last[i].end >= t->last[i].begin && t->last[i].begin > 0);
    for (int i = 0; i < DP_TRACK_DEPTH + 2; i++) /* deeper than is kept */
        dp_track_push(track, "deep", NULL, 2, -1);
    for (int i = 0; i < DP_TRACK_DEPTH + 2; i++)
        dp_track_pop(track);
    ck_assert(dp_trace_flush(&trace, NULL) == DP_OK);
    ck_assert_int_eq(t->count, 8);
    dp_trace_clear(&trace);
    free(t);
}
END_TEST

START_TEST(nothing_happens_without_a_trace)
{
    dp_track *track;
    ck_assert(dp_track_create(NULL, "group", "name", 4, &track, NULL) == DP_OK);
    ck_assert_ptr_null(track);
    dp_track_push(track, "span", NULL, 0, -1);
    dp_track_add(track, &(dp_span){.name = "span"});
    dp_track_pop(track);
    ck_assert(dp_trace_flush(NULL, NULL) == DP_OK);
}
END_TEST

START_TEST(a_failing_sink_is_an_error)
{
    taken *t = new_taken();
    t->fail_after = 1;
    dp_trace trace = {.sink = {announce, take, t}};
    dp_track *track;
    dp_error err = {0};
    ck_assert(dp_track_create(&trace, "group", "name", 8, &track, NULL) == DP_OK);
    for (int i = 0; i < 3; i++)
        dp_track_add(track, &(dp_span){.name = "span"});
    ck_assert(dp_trace_flush(&trace, &err) == DP_ERROR_IO);
    ck_assert_str_eq(err.message, "full");
    dp_trace_clear(&trace);
    free(t);
}
END_TEST

typedef struct adder {
    dp_track *track;
    int count;
    _Atomic bool done;
} adder;

static void *add_many(void *argument)
{
    adder *a = argument;
    for (int i = 0; i < a->count; i++) {
        dp_track_push(a->track, "outer", NULL, i + 1, -1);
        dp_track_push(a->track, "inner", NULL, i + 1, -1);
        dp_track_pop(a->track);
        dp_track_pop(a->track);
    }
    atomic_store(&a->done, true);
    return NULL;
}

/* Whatever is taken while another thread adds is whole and in order, and all that was added is taken or
 * counted. */
START_TEST(a_thread_adds_while_the_coordinator_takes)
{
    taken *t = new_taken();
    dp_trace trace = {.sink = {announce, take, t}};
    adder a = {.count = 50000};
    pthread_t thread;
    ck_assert(dp_track_create(&trace, "group", "name", 64, &a.track, NULL) == DP_OK);
    ck_assert(dp_thread_start(&thread, "adder", add_many, &a, NULL) == DP_OK);
    while (!atomic_load(&a.done))
        ck_assert(dp_trace_flush(&trace, NULL) == DP_OK);
    pthread_join(thread, NULL);
    ck_assert(dp_trace_flush(&trace, NULL) == DP_OK);
    ck_assert_uint_eq((uint64_t)t->count + dp_trace_dropped(&trace), 2 * (uint64_t)a.count);
    for (int i = 1; i < t->count; i++) {
        ck_assert(t->last[i].begin >= t->last[i - 1].begin);
        ck_assert(t->last[i].end >= t->last[i].begin && t->last[i].step >= t->last[i - 1].step);
    }
    dp_trace_clear(&trace);
    free(t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tracks");
    TCase *c = tcase_create("tracks");
    tcase_add_test(c, spans_nest_and_come_in_the_order_of_their_begins);
    tcase_add_test(c, what_does_not_fit_is_counted);
    tcase_add_test(c, nothing_happens_without_a_trace);
    tcase_add_test(c, a_failing_sink_is_an_error);
    tcase_add_test(c, a_thread_adds_while_the_coordinator_takes);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
