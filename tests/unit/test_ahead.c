/* Things made ahead by threads: in order, as many as may wait, never at a standstill. */
#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/ahead.h"

enum { ITEMS = 60, SLOTS = 8 };

typedef struct works {
    int64_t made[SLOTS]; /* the item in a slot */
    int64_t cost;        /* of every third item; 1 of the others */
    _Atomic int64_t waiting, most_waiting;
    int64_t failing; /* an item, or ALL */
} works;

enum { ALL = -2 };

static int64_t cost_of(const void *user, int64_t item)
{
    return item % 3 == 0 ? ((const works *)user)->cost : 1;
}

static dp_status make(void *user, int thread, int64_t item, int64_t slot, dp_error *err)
{
    works *w = user;
    int64_t waiting = atomic_fetch_add(&w->waiting, cost_of(w, item)) + cost_of(w, item);
    int64_t most = atomic_load(&w->most_waiting);
    while (waiting > most && !atomic_compare_exchange_weak(&w->most_waiting, &most, waiting))
        ;
    nanosleep(&(struct timespec){0, item % 4 * 100000}, NULL);
    w->made[slot] = item;
    if (item == w->failing || w->failing == ALL)
        return dp_fail(err, DP_ERROR_IO, "item %lld, thread %d", (long long)item, thread);
    return DP_OK;
}

static dp_ahead *create(works *w, int threads, int64_t most_held, int64_t most_cost)
{
    dp_ahead *a;
    const dp_ahead_config config = {.name = "test",
                                    .threads = threads,
                                    .slots = SLOTS,
                                    .most_held = most_held,
                                    .make = make,
                                    .cost = most_cost ? cost_of : NULL,
                                    .most_cost = most_cost,
                                    .user = w};
    ck_assert(dp_ahead_create(&config, &a, NULL) == DP_OK);
    return a;
}

static void let_go(dp_ahead *a, works *w, int64_t slot)
{
    atomic_fetch_sub(&w->waiting, cost_of(w, w->made[slot]));
    dp_ahead_release(a, slot);
}

/* Items that alone are dearer than all may be come one at a time, also while the one before is held. */
START_TEST(the_item_waited_for_is_always_begun)
{
    works w = {.cost = _i, .failing = -1};
    dp_ahead *a = create(&w, 3, 2, 5);
    int64_t slot, before = -1;
    dp_ahead_start(a, 0, ITEMS);
    for (int64_t i = 0; i < ITEMS; i++) {
        ck_assert(dp_ahead_next(a, &slot, NULL) == DP_OK);
        ck_assert_int_eq(w.made[slot], i);
        if (before >= 0)
            let_go(a, &w, before);
        before = slot;
    }
    let_go(a, &w, before);
    ck_assert(dp_ahead_next(a, &slot, NULL) == DP_OK && slot == -1);
    /* Within the limit, but for one that is waited for beside two that are held: every third one is dear. */
    ck_assert_int_le(atomic_load(&w.most_waiting), _i < 4 ? 5 : _i + 2);
    dp_ahead_free(a);
}
END_TEST

START_TEST(a_failure_is_of_one_item)
{
    works w = {.failing = 7};
    dp_ahead *a = create(&w, 4, 1, 0);
    dp_error err;
    int64_t slot;
    dp_ahead_start(a, 5, ITEMS);
    for (int64_t i = 5; i < ITEMS; i++) {
        ck_assert_int_eq(dp_ahead_next(a, &slot, &err), i == 7 ? DP_ERROR_IO : DP_OK);
        ck_assert_int_eq(slot < 0, i == 7);
        if (i == 7)
            ck_assert_int_eq(strncmp(err.message, "item 7, thread ", 15), 0);
        else
            ck_assert_int_eq(w.made[slot], i);
        if (i == 9) { /* one may be held */
            int64_t more;
            ck_assert_int_eq(dp_ahead_next(a, &more, &err), DP_ERROR_INTERNAL);
            ck_assert_int_eq(dp_ahead_stop(a, &err), DP_ERROR_INTERNAL);
        }
        if (i != 7)
            dp_ahead_release(a, slot);
    }
    dp_ahead_free(a);
}
END_TEST

/* However many fail: their slots are for others. */
START_TEST(every_item_may_fail)
{
    works w = {.failing = ALL};
    dp_ahead *a = create(&w, 3, 1, 0);
    int64_t slot;
    dp_ahead_start(a, 0, ITEMS);
    for (int64_t i = 0; i < ITEMS; i++)
        ck_assert(dp_ahead_next(a, &slot, NULL) == DP_ERROR_IO && slot == -1);
    ck_assert(dp_ahead_next(a, &slot, NULL) == DP_OK && slot == -1);
    dp_ahead_free(a);
}
END_TEST

/* After a stop, too, as much is made as may be: if it is not, the test does not end. */
START_TEST(as_much_waits_as_may)
{
    enum { MOST = 5 };
    works w = {.cost = 1, .failing = -1};
    dp_ahead *a = create(&w, 2, 1, MOST);
    for (int round = 0; round < 3; round++) {
        dp_ahead_start(a, 0, ITEMS);
        while (atomic_load(&w.waiting) < MOST)
            nanosleep(&(struct timespec){0, 100000}, NULL);
        ck_assert(dp_ahead_stop(a, NULL) == DP_OK);
        ck_assert_int_eq(atomic_exchange(&w.waiting, 0), MOST);
    }
    dp_ahead_free(a);
}
END_TEST

START_TEST(a_stop_drops_what_was_not_taken)
{
    works w = {.failing = -1};
    dp_ahead *a = create(&w, _i, 1, 0);
    int64_t slot;
    for (int64_t first = 0; first < 20; first++) {
        ck_assert(dp_ahead_stop(a, NULL) == DP_OK);
        ck_assert(dp_ahead_next(a, &slot, NULL) == DP_OK && slot == -1);
        dp_ahead_start(a, first, ITEMS);
        for (int64_t i = first; i < first + 3; i++) {
            ck_assert(dp_ahead_next(a, &slot, NULL) == DP_OK);
            ck_assert_int_eq(w.made[slot], i);
            dp_ahead_release(a, slot);
        }
    }
    dp_ahead_free(a); /* while threads are at work */
}
END_TEST

/* As files are written: what there is to do becomes known bit by bit, from item 3 on. */
START_TEST(more_may_come)
{
    works w = {.failing = 9};
    dp_ahead *a = create(&w, _i, 1, 0);
    int64_t slot, taken = 3;
    dp_ahead_start(a, taken, taken);
    for (int64_t end = 4; end <= ITEMS; end++) {
        dp_ahead_extend(a, end);
        while (taken < end && (end - taken == SLOTS - 1 || end == ITEMS || dp_ahead_has_next(a))) {
            ck_assert_int_eq(dp_ahead_next(a, &slot, NULL), taken == 9 ? DP_ERROR_IO : DP_OK);
            ck_assert_int_eq(slot < 0, taken == 9);
            if (slot >= 0) {
                ck_assert_int_eq(w.made[slot], taken);
                dp_ahead_release(a, slot);
            }
            taken++;
        }
    }
    ck_assert_int_eq(taken, ITEMS);
    ck_assert(!dp_ahead_has_next(a));
    ck_assert(dp_ahead_next(a, &slot, NULL) == DP_OK && slot == -1);
    dp_ahead_free(a);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ahead");
    TCase *t = tcase_create("ahead");
    tcase_add_loop_test(t, the_item_waited_for_is_always_begun, 1, 8);
    tcase_add_test(t, a_failure_is_of_one_item);
    tcase_add_test(t, every_item_may_fail);
    tcase_add_test(t, as_much_waits_as_may);
    tcase_add_loop_test(t, a_stop_drops_what_was_not_taken, 1, 5);
    tcase_add_loop_test(t, more_may_come, 1, 5);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
