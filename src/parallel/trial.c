/* Tries direct links in a process of their own (dp_context_try_links): it can be ended when a link hangs, and
 * takes with it what a damaged transfer has done to its contexts.
 *
 * The program is run as `PROGRAM try-links DEVICES SECONDS A-B,A-C,...`. Of each pair it prints "A B begin"
 * when both devices have contexts, and then "A B sound", "A B damaged", or "A B failed: WHY", after which it
 * ends. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/thread.h"
#include "parallel/context.h"

enum {
    START_SECONDS = 60,  /* for a context on each GPU of a large machine */
    DEFAULT_SECONDS = 5, /* for a pair: 14 MiB travel */
    PAIR_TEXT = 8,       /* "63-62," and to spare */
    MAX_LINE = 320,
    CHILD_INPUT = 0,
    CHILD_OUTPUT = 1,
    CHILD_ERRORS = 2
};

typedef struct pair {
    int a, b;
} pair;

typedef struct trial {
    dp_context *context;
    const dp_link_trial *how;
    double seconds;
    pair *pairs;
    int count, settled; /* those before `settled` have been tried */
} trial;

/* One run of the program. */
typedef struct child {
    pid_t pid;
    int output;
    bool begun; /* the pair at hand: its devices have contexts */
    char line[MAX_LINE];
    size_t length;
} child;

/* ---- which pairs ---- */

static bool same_pair(const dp_context *c, pair p, pair q)
{
    const dp_device *d = c->backend->devices;
    int a = d[p.a].properties.physical, b = d[p.b].properties.physical;
    int x = d[q.a].properties.physical, y = d[q.b].properties.physical;
    return (a == x && b == y) || (a == y && b == x);
}

/* Calls `act` for all pairs of devices on the same hardware as p. */
static void for_same(dp_context *c, pair p, void (*act)(dp_context *, pair))
{
    int count = c->backend->device_count;
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++)
            if (same_pair(c, p, (pair){a, b}))
                act(c, (pair){a, b});
}

static void set_tried(dp_context *c, pair p)
{
    c->tried[p.a] |= UINT64_C(1) << p.b;
}

static void set_direct(dp_context *c, pair p)
{
    c->backend->devices[p.a].staged &= ~(UINT64_C(1) << p.b);
}

static dp_status list_pairs(trial *t, const int *ids, int id_count, const int *hubs, int hub_count,
                            dp_error *err)
{
    dp_context *c = t->context;
    dp_device *devices = c->backend->devices;
    DP_TRY(dp_calloc((size_t)id_count * (size_t)hub_count, sizeof *t->pairs, "links to try", &t->pairs, err));
    for (int h = 0; h < hub_count; h++)
        for (int k = 0; k < id_count; k++) {
            const pair p = {hubs[h], ids[k]};
            if ((c->tried[p.a] >> p.b & 1) || !c->backend->call->peer_possible(&devices[p.a], &devices[p.b]))
                continue;
            for_same(c, p, set_tried);
            t->pairs[t->count++] = p;
        }
    return DP_OK;
}

/* ---- the process ---- */

static char *describe_pairs(const trial *t, dp_error *err)
{
    char *text, *at;
    size_t size = (size_t)(t->count - t->settled) * PAIR_TEXT + 1;
    if (dp_calloc(size, 1, "links to try", &text, err) != DP_OK)
        return NULL;
    at = text;
    for (int i = t->settled; i < t->count; i++)
        at += snprintf(at, size - (size_t)(at - text), "%s%d-%d", at == text ? "" : ",", t->pairs[i].a,
                       t->pairs[i].b);
    return text;
}

/* In a process group of its own, so that Ctrl-C ends this program and not the trial alone; that one ends by
 * itself (see its SECONDS). Signals as a shell would set them. */
static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int rc = posix_spawnattr_setsigmask(attributes, &none);
    if (!rc)
        rc = posix_spawnattr_setsigdefault(attributes, &all);
    if (!rc)
        rc = posix_spawnattr_setpgroup(attributes, 0);
    return rc ? rc
              : posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                         POSIX_SPAWN_SETPGROUP);
}

static int set_files(posix_spawn_file_actions_t *files, int output)
{
    int rc = posix_spawn_file_actions_adddup2(files, output, CHILD_OUTPUT);
    if (!rc)
        rc = posix_spawn_file_actions_addopen(files, CHILD_INPUT, "/dev/null", O_RDONLY, 0);
    return rc ? rc : posix_spawn_file_actions_addopen(files, CHILD_ERRORS, "/dev/null", O_WRONLY, 0);
}

static int spawn(const trial *t, const char *pairs, int output, pid_t *pid)
{
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t files;
    char devices[16], seconds[32];
    snprintf(devices, sizeof devices, "%d", t->context->backend->device_count);
    snprintf(seconds, sizeof seconds, "%d", (int)t->seconds + 1);
    char *const arguments[] = {(char *)t->how->program, "try-links", devices, seconds, (char *)pairs, NULL};
    int rc = posix_spawnattr_init(&attributes);
    if (rc)
        return rc;
    rc = posix_spawn_file_actions_init(&files);
    if (!rc) {
        rc = set_attributes(&attributes);
        if (!rc)
            rc = set_files(&files, output);
        if (!rc)
            rc = posix_spawn(pid, t->how->program, &files, &attributes, arguments, environ);
        posix_spawn_file_actions_destroy(&files);
    }
    posix_spawnattr_destroy(&attributes);
    return rc;
}

static dp_status start(const trial *t, child *c, dp_error *err)
{
    int ends[2];
    char *pairs = describe_pairs(t, err);
    if (!pairs)
        return DP_ERROR_MEMORY;
    int rc = pipe2(ends, O_CLOEXEC) == 0 ? 0 : errno;
    if (!rc) {
        *c = (child){.output = ends[0]};
        rc = spawn(t, pairs, ends[1], &c->pid);
        close(ends[1]);
        if (rc)
            close(ends[0]);
    }
    dp_free(pairs);
    return rc ? dp_fail(err, DP_ERROR_IO, "'%s' cannot be run: %s", t->how->program, strerror(rc)) : DP_OK;
}

/* A process that the driver holds does not die: it is waited for, but not for ever. */
static void end(child *c)
{
    const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    close(c->output);
    kill(c->pid, SIGKILL);
    for (int i = 0; i < 500 && waitpid(c->pid, NULL, WNOHANG) == 0; i++)
        nanosleep(&moment, NULL);
}

/* ---- what it says ---- */

typedef enum heard { HEARD_LINE, HEARD_END, HEARD_NOTHING } heard;

/* The next line, without its end, in c->line. */
static heard listen_until(child *c, double deadline)
{
    for (c->length = 0;;) {
        struct pollfd poll_for = {.fd = c->output, .events = POLLIN};
        double left = deadline - dp_now();
        int ready = left > 0 ? poll(&poll_for, 1, (int)(left * 1000) + 1) : 0;
        if (ready == 0)
            return HEARD_NOTHING;
        char letter;
        ssize_t got = ready > 0 ? read(c->output, &letter, 1) : -1;
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return HEARD_END;
        if (letter == '\n') {
            c->line[c->length] = 0;
            return HEARD_LINE;
        }
        if (c->length + 1 < sizeof c->line)
            c->line[c->length++] = letter;
    }
}

/* why: NULL if the pair may be used. */
static void settle(trial *t, const char *why)
{
    const pair p = t->pairs[t->settled++];
    if (!why)
        for_same(t->context, p, set_direct);
    else if (t->how->broken)
        t->how->broken(t->how->user, p.a, p.b, why);
}

/* Reads what concerns the pair at hand. False: the process can go on no further. */
static bool hear(trial *t, child *c)
{
    static const char failed[] = "failed: ";
    char why[MAX_LINE + 32], expected[32];
    const pair p = t->pairs[t->settled];
    double limit = c->begun ? t->seconds : START_SECONDS;
    heard what = listen_until(c, dp_now() + limit);
    size_t n = (size_t)snprintf(expected, sizeof expected, "%d %d ", p.a, p.b);
    const char *said = c->line + n;
    if (what == HEARD_LINE && strncmp(c->line, expected, n) == 0) {
        bool begins = strcmp(said, "begin") == 0;
        if (strcmp(said, "sound") == 0)
            settle(t, NULL);
        else if (strcmp(said, "damaged") == 0)
            settle(t, "damaged: what arrived is not what was sent");
        else if (!begins) {
            bool told = strncmp(said, failed, sizeof failed - 1) == 0;
            settle(t, told ? said + sizeof failed - 1 : "the trial ended early");
            return false;
        }
        c->begun = begins;
        return true;
    }
    if (what == HEARD_NOTHING)
        snprintf(why, sizeof why, "%s within %.0f s",
                 c->begun ? "nothing arrived" : "the trial did not begin", limit);
    else
        snprintf(why, sizeof why, "the trial ended early");
    settle(t, why);
    return false;
}

/* One process, for as many of the pairs as it lives through, at least one. One that does not even begin is no
 * better the next time. */
static void run(trial *t)
{
    child c;
    dp_error error = {0};
    char why[sizeof error.message + 32];
    if (start(t, &c, &error) != DP_OK) {
        snprintf(why, sizeof why, "it was not tried: %s", error.message);
        while (t->settled < t->count)
            settle(t, why);
        return;
    }
    bool any = false;
    while (t->settled < t->count && hear(t, &c))
        any |= c.begun;
    end(&c);
    while (!any && t->settled < t->count)
        settle(t, "the trial did not begin");
}

static dp_status check_ids(const dp_context *c, const int *ids, int count, dp_error *err)
{
    for (int k = 0; k < count; k++)
        if (ids[k] < 0 || ids[k] >= c->backend->device_count)
            return dp_fail(err, DP_ERROR_USAGE, "there is no device %s:%d", c->backend->call->name, ids[k]);
    return DP_OK;
}

dp_status dp_context_try_links(dp_context *context, const int *ids, int id_count, const int *hubs,
                               int hub_count, const dp_link_trial *how, dp_error *err)
{
    trial t = {.context = context, .how = how, .seconds = how->seconds > 0 ? how->seconds : DEFAULT_SECONDS};
    DP_TRY(check_ids(context, ids, id_count, err));
    DP_TRY(check_ids(context, hubs, hub_count, err));
    if (context->p2p != DP_P2P_AUTO)
        return DP_OK;
    DP_TRY(list_pairs(&t, ids, id_count, hubs, hub_count, err));
    while (t.settled < t.count)
        run(&t);
    dp_free(t.pairs);
    return DP_OK;
}
