/* The lessons of `dptrain explain`: one file each or two, dispatched by cmd_explain.c. */
#ifndef DP_CLI_EXPLAIN_H
#define DP_CLI_EXPLAIN_H

#include "cli/cli.h"

/* Each prints its lesson, or its figures as JSON, to stdout. */
dp_status explain_loss_average(const cli_options *o, dp_error *err);
dp_status explain_imbalance(const cli_options *o, dp_error *err);
dp_status explain_batch_size(const cli_options *o, dp_error *err);
dp_status explain_split(const cli_options *o, dp_error *err);
dp_status explain_device_ids(const cli_options *o, dp_error *err);
dp_status explain_accumulation(const cli_options *o, dp_error *err);
dp_status explain_speedup(const cli_options *o, dp_error *err);

/* ---- what they share ---- */

/* The devices of a lesson that measures. */
typedef struct explain_devices {
    dp_context_config context;
    int ids[DP_ENGINE_MAX_DEVICES], count;
    char label[DP_ENGINE_MAX_DEVICES][24], name[96]; /* name: of the first */
    bool proves_nothing;                             /* about times */
} explain_devices;

/* Those that were asked for, or all, at most `most`. Where there is one alone and nobody said how many there
 * should be, it is made into two. */
dp_status explain_find_devices(const cli_options *o, int most, explain_devices *out, dp_error *err);
/* "cpu:0 and cpu:1 (name)"; returns buffer. */
enum { EXPLAIN_DEVICES_SIZE = 256 };
char *explain_devices_text(const explain_devices *d, char *buffer, size_t size);
void explain_warn(const explain_devices *d); /* if times prove nothing: a line that says so */

/* A value for an option that was not given. */
void explain_default(cli_options *o, cli_option option, const char *value);

/* After `lead` blanks a bar of value / full of so many columns; nothing where it has no length, which is
 * returned. */
int explain_bar(int lead, double value, double full, int width);
dp_status explain_json(json_t *json, dp_error *err); /* to stdout; takes it over */

#endif
