/* The view of a run that a terminal shows while it trains: a line of progress, and one for every device,
 * drawn over the last ones. Lines are ASCII and cut to the window's width, so that none wraps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"

enum { MOST_DEVICES = 8, LINE = 256, BAR = 20 };

typedef struct window {
    int rows, columns;
    bool colour;
} window;

/* What fits: a bar of this length (0: none), and the rate. */
static int bar_length(const window *w)
{
    return w->columns >= 80 ? BAR : w->columns >= 50 ? BAR / 2 : 0;
}

/* NO_COLOR: https://no-color.org */
static window look(void)
{
    struct winsize size;
    const char *plain = getenv("NO_COLOR");
    window w = {.rows = 24, .columns = 80, .colour = !plain || !*plain};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0)
        return w;
    if (size.ws_col > 0)
        w.columns = size.ws_col;
    if (size.ws_row > 0)
        w.rows = size.ws_row;
    return w;
}

/* Prints a line without its end; the bytes from `from` up to `to` in colour. */
static void print_line(const window *w, const char *line, int from, int to)
{
    int length = (int)strlen(line);
    length = length < w->columns ? length : w->columns - 1; /* the last column may make the cursor go on */
    from = from < length ? from : length;
    to = to < length ? to : length;
    fputc('\r', stderr);
    fprintf(stderr, "%.*s", from, line);
    if (to > from)
        fprintf(stderr, w->colour ? "\033[36m%.*s\033[0m" : "%.*s", to - from, line + from);
    fprintf(stderr, "%.*s\033[K", length - to, line + to);
}

/* "[####......]" and a space, or nothing; *full: how much of it is filled. */
static void fill_bar(const window *w, double share, char text[BAR + 4], int *full)
{
    int length = bar_length(w);
    *full = (int)(length * share + 0.5);
    *full = *full < 0 ? 0 : *full > length ? length : *full;
    text[0] = 0;
    for (int i = 0; length > 0 && i < length + 2; i++)
        text[i] = i == 0 ? '[' : i <= *full ? '#' : i <= length ? '.' : ']';
    if (length > 0)
        memcpy(text + length + 2, " ", 2);
}

static void print_progress(const window *w, const dp_train_progress *p)
{
    char line[LINE], bar[BAR + 4], count[32], rate[48] = "", left[32];
    int64_t done = p->batch + 1;
    double share = (double)done / (double)p->batches;
    int64_t seconds = (int64_t)(p->seconds / (double)done * (double)(p->batches - done));
    int full;
    fill_bar(w, share, bar, &full);
    snprintf(left, sizeof left, seconds < 3600 ? "%lld:%02lld" : "%lld:%02lld h",
             (long long)(seconds < 3600 ? seconds / 60 : seconds / 3600),
             (long long)(seconds < 3600 ? seconds % 60 : seconds % 3600 / 60));
    if (w->columns >= 72)
        snprintf(rate, sizeof rate, "  %s samples/s",
                 dp_format_rate(p->seconds > 0 ? (double)p->samples / p->seconds : 0, count, sizeof count));
    int head = snprintf(line, sizeof line, "epoch %lld ", (long long)p->epoch);
    snprintf(line + head, sizeof line - (size_t)head, "%s%3.0f %%  loss %.4f%s  ETA %s", bar, 100 * share,
             p->average, rate, left);
    print_line(w, line, head + 1, head + 1 + full);
}

static void print_device(const window *w, const dp_device_report *r)
{
    char line[LINE], bar[BAR + 4], memory[32];
    int full, head = snprintf(line, sizeof line, "%-7s ", r->device);
    fill_bar(w, r->busy_fraction, bar, &full);
    snprintf(line + head, sizeof line - (size_t)head, "%s%3.0f %% busy  %s%s", bar, 100 * r->busy_fraction,
             dp_format_bytes(r->peak_total_bytes, memory, sizeof memory),
             w->columns >= 64 ? " of memory" : "");
    print_line(w, line, head + 1, head + 1 + full);
}

/* What the devices that have no line of their own do. */
static void print_others(const window *w, const dp_engine *engine, int first)
{
    double low = 1, high = 0;
    uint64_t most = 0;
    int count = dp_engine_devices(engine) - first;
    char line[LINE], memory[32];
    for (int k = first; k < first + count; k++) {
        dp_device_report r;
        if (dp_engine_report(engine, k, &r, NULL) != DP_OK)
            continue;
        low = r.busy_fraction < low ? r.busy_fraction : low;
        high = r.busy_fraction > high ? r.busy_fraction : high;
        most = r.peak_total_bytes > most ? r.peak_total_bytes : most;
    }
    snprintf(line, sizeof line, "%d more: busy %.0f to %.0f %%, at most %s", count, 100 * low, 100 * high,
             dp_format_bytes(most, memory, sizeof memory));
    print_line(w, line, 0, 0);
}

void cli_live_erase(int *lines)
{
    for (int i = 0; i < *lines; i++)
        fputs(i ? "\033[1A\r\033[K" : "\r\033[K", stderr);
    *lines = 0;
}

void cli_live_draw(int *lines, const dp_train_progress *p)
{
    window w = look();
    int devices = dp_engine_devices(p->engine), room = w.rows - 2;
    room = room > MOST_DEVICES ? MOST_DEVICES : room < 0 ? 0 : room;
    int shown = devices <= room ? devices : room > 0 ? room - 1 : 0;
    if (*lines > 1)
        fprintf(stderr, "\033[%dA", *lines - 1);
    print_progress(&w, p);
    int drawn = 1;
    for (int k = 0; k < shown; k++) {
        dp_device_report r;
        if (dp_engine_report(p->engine, k, &r, NULL) != DP_OK)
            continue;
        fputc('\n', stderr);
        print_device(&w, &r);
        drawn++;
    }
    if (devices > shown && room > 0) {
        fputc('\n', stderr);
        print_others(&w, p->engine, shown);
        drawn++;
    }
    fputs("\033[J", stderr); /* of a window that was higher */
    fflush(stderr);
    *lines = drawn;
}
