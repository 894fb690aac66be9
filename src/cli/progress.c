/* Training as seen on stderr: a view that is redrawn on a terminal (live.c), lines elsewhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"

void cli_progress_init(cli_progress *progress, bool quiet, int64_t print_freq)
{
    const char *term = getenv("TERM");
    *progress = (cli_progress){.quiet = quiet,
                               .terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0,
                               .print_freq = print_freq};
}

void cli_progress_break(cli_progress *progress)
{
    cli_live_erase(&progress->lines);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double rate(const dp_train_progress *p)
{
    return p->seconds > 0 ? (double)p->samples / p->seconds : 0;
}

static void on_batch(void *user, const dp_train_progress *p)
{
    cli_progress *c = user;
    if (c->terminal) {
        double t = now();
        if (t - c->last_draw >= 0.1 || p->batch + 1 == p->batches) {
            c->last_draw = t;
            cli_live_draw(&c->lines, p);
        }
    } else if ((p->batch + 1) % c->print_freq == 0 || p->batch + 1 == p->batches) {
        char count[32];
        fprintf(stderr, "epoch %lld  batch %lld/%lld  loss %.4f  average %.4f  %s samples/s\n",
                (long long)p->epoch, (long long)(p->batch + 1), (long long)p->batches, p->loss, p->average,
                dp_format_rate(rate(p), count, sizeof count));
    }
}

static void on_epoch(void *user, const dp_epoch_summary *e)
{
    cli_progress *c = user;
    char count[32];
    cli_progress_break(c);
    fprintf(stderr, "epoch %lld  training loss %.4f", (long long)e->epoch, e->train_loss);
    if (e->validated)
        fprintf(stderr, "  validation loss %.4f", e->valid_loss);
    if (e->has_accuracy)
        fprintf(stderr, "  accuracy %.2f %%", 100 * e->valid_accuracy);
    if (e->has_overlap)
        fprintf(stderr, "  IoU %.3f  F1 %.3f", e->valid_iou, e->valid_f1);
    fprintf(stderr, "  %.1f s  %s samples/s%s\n", e->seconds,
            dp_format_rate(e->samples_per_second, count, sizeof count), e->best ? "  best so far" : "");
}

static void on_note(void *user, const char *text)
{
    cli_progress_break(user);
    fprintf(stderr, "note: %s\n", text);
}

static void on_warning(void *user, const char *text)
{
    cli_progress_break(user);
    fprintf(stderr, "warning: %s\n", text);
}

static void print_split(const dp_train_start *s)
{
    int64_t batch = 0; /* all samples, where the data has fewer than batch_size */
    for (int k = 0; k < s->devices; k++)
        batch += s->chunk_sizes[k];
    fprintf(stderr, "  batch %lld =", (long long)batch);
    for (int k = 0; k < s->devices && k < 12; k++)
        fprintf(stderr, "%s%lld", k ? " + " : " ", (long long)s->chunk_sizes[k]);
    fprintf(stderr, "%s on %d device%s", s->devices > 12 ? " + ..." : "", s->devices,
            s->devices == 1 ? "" : "s");
    if (s->config->accumulation_steps > 1)
        fprintf(stderr, ", a step every %lld batches", (long long)s->config->accumulation_steps);
    fprintf(stderr, "\n");
}

static void on_start(void *user, const dp_train_start *s)
{
    (void)user;
    const dp_train_config *c = s->config;
    const dp_optimizer_config *o = &c->engine.optimizer;
    char count[32];
    fprintf(stderr, "  model %s, %s parameter%s\n", dp_model_name(s->model),
            dp_format_count(dp_model_elements(s->model), count, sizeof count),
            dp_s(dp_model_elements(s->model)));
    fprintf(stderr, "  data %s\n", s->train->description);
    if (s->valid)
        fprintf(stderr, "  %s %s sample%s\n", s->valid->is_test ? "tested on" : "held out",
                dp_format_count(s->valid->samples, count, sizeof count), dp_s(s->valid->samples));
    print_split(s);
    fprintf(stderr, "  loss %s, mode %s", dp_loss_names[c->engine.criterion],
            dp_loss_mode_names[c->engine.loss_mode]);
    if (c->engine.pos_weight != 1)
        fprintf(stderr, ", positive terms times %.4g", c->engine.pos_weight);
    fprintf(stderr, "\n");
    if (o->adamw)
        fprintf(stderr, "  adamw, lr %g, weight decay %g", c->lr, o->weight_decay);
    else
        fprintf(stderr, "  sgd, lr %g, momentum %g%s, weight decay %g", c->lr, o->momentum,
                o->nesterov ? " (nesterov)" : "", o->weight_decay);
    fprintf(stderr, ", %lld epoch%s of %lld batch%s", (long long)c->epochs, c->epochs == 1 ? "" : "s",
            (long long)s->batches, s->batches == 1 ? "" : "es");
    if (c->max_steps)
        fprintf(stderr, ", at most %lld step%s", (long long)c->max_steps, c->max_steps == 1 ? "" : "s");
    fprintf(stderr, "\n");
}

dp_train_observer cli_observer(cli_progress *progress)
{
    if (progress->quiet)
        return (dp_train_observer){.user = progress, .warning = on_warning};
    return (dp_train_observer){.user = progress,
                               .start = on_start,
                               .batch = on_batch,
                               .epoch = on_epoch,
                               .note = on_note,
                               .warning = on_warning};
}
