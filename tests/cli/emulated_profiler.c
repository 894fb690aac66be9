/* What a profiler sees of a run on emulated GPUs. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

enum { MAX_THREADS = 32, MAX_DEPTH = 3 };

typedef struct timeline {
    int thread, depth;
    bool named;
    char open[MAX_DEPTH][32]; /* names of the ranges that are open */
} timeline;

static const char *const phases[] = {"wait", "scatter",  "broadcast", "forward",  "gather",
                                     "loss", "backward", "reduce",    "optimizer"};
enum { PHASES = sizeof phases / sizeof *phases };

static int phase_of(const char *name)
{
    for (int p = 0; p < PHASES; p++)
        if (strcmp(phases[p], name) == 0)
            return p;
    return -1;
}

/* Outside a step a device waits, or sends for its next chunk; in a step there is always a phase. A phase may
 * hold a wait, and the last one, when all is queued, the next chunk. */
static void assert_nested(const timeline *t, const char *name)
{
    if (t->depth == 0)
        ck_assert_msg(strcmp(name, "step") == 0 || strcmp(name, "wait") == 0 || strcmp(name, "scatter") == 0,
                      "range '%s' outside a step", name);
    else if (t->depth == 1)
        ck_assert_msg(strcmp(t->open[0], "step") == 0 && phase_of(name) > 0, "range '%s' in '%s'", name,
                      t->open[0]);
    else
        ck_assert_msg(t->depth == 2 && (strcmp(name, "wait") == 0 || (strcmp(name, "scatter") == 0 &&
                                                                      strcmp(t->open[1], "optimizer") == 0)),
                      "range '%s' in '%s'", name, t->open[1]);
}

static timeline *find_timeline(timeline *timelines, int thread)
{
    for (int i = 0; i < MAX_THREADS; i++) {
        if (timelines[i].thread == 0)
            timelines[i].thread = thread;
        if (timelines[i].thread == thread)
            return &timelines[i];
    }
    ck_abort_msg("more than %d threads", MAX_THREADS);
    return NULL;
}

/* Reads a record; counts what was seen and leaves the timelines as they ended. */
static void read_record(timeline *timelines, int seen[PHASES], int *steps, int *streams)
{
    char line[256], what[16], name[64], of[32];
    FILE *f = fopen("record", "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        int thread, fields = sscanf(line, "%d %15s %63s %31[^\n]", &thread, what, name, of);
        ck_assert_int_ge(fields, 2);
        timeline *t = find_timeline(timelines, thread);
        if (strcmp(what, "push") == 0) {
            ck_assert_int_eq(fields, 3);
            ck_assert(t->named);
            assert_nested(t, name);
            snprintf(t->open[t->depth++], sizeof t->open[0], "%.31s", name);
            *steps += strcmp(name, "step") == 0;
            if (phase_of(name) >= 0)
                seen[phase_of(name)]++;
        } else if (strcmp(what, "pop") == 0) {
            ck_assert_int_gt(t->depth, 0);
            t->depth--;
        } else if (strcmp(name, "thread") == 0) {
            ck_assert_msg(strcmp(of, "cuda:0") == 0 || strcmp(of, "cuda:1") == 0, "thread '%s'", of);
            t->named = true;
        } else {
            ck_assert_str_eq(name, "stream");
            ck_assert_msg(strncmp(of, "cuda:", 5) == 0 &&
                              (strcmp(of + 6, " compute") == 0 || strcmp(of + 6, " copy") == 0 ||
                               strcmp(of + 6, " input") == 0),
                          "stream '%s'", of);
            ++*streams;
        }
    }
    fclose(f);
}

START_TEST(ranges_nest_and_bear_the_names_of_the_phases)
{
    char recorder[PATH_MAX + 64];
    timeline timelines[MAX_THREADS] = {0};
    int seen[PHASES] = {0}, steps = 0, streams = 0, threads = 0;
    machine("2");
    snprintf(recorder, sizeof recorder, "%s/libnvtx_recorder.so", emulated_tools());
    setenv("NVTX_INJECTION64_PATH", recorder, 1);
    setenv("NVTX_RECORD", "record", 1);
    /* The process that tries links would be recorded, too. */
    assert_succeeds(dptrain("train " SMALL "--valid-split 0.25 --p2p on"));
    read_record(timelines, seen, &steps, &streams);
    for (int i = 0; i < MAX_THREADS; i++) {
        ck_assert_int_eq(timelines[i].depth, 0);
        threads += timelines[i].named;
    }
    ck_assert_int_eq(threads, 2);
    ck_assert_int_eq(streams, 2 * 3);
    ck_assert_int_eq(steps, 2 * 2 * (3 + 1)); /* devices, epochs, batches of training and of validation */
    for (int p = 0; p < PHASES; p++)
        ck_assert_msg(seen[p] > 0, "no range '%s'", phases[p]);
    ck_assert_int_ge(seen[phase_of("reduce")], 2 * 3); /* the primary's, between parts of backward too */
}
END_TEST

TCase *emulated_profiler_case(void)
{
    TCase *c = tcase_create("profiler");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_test(c, ranges_nest_and_bear_the_names_of_the_phases);
    return c;
}
