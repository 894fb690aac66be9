/* Parsing: one table for all commands, strict values, suggestions. */
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

typedef struct option_spec {
    const char *name, *argument, *help;
    int commands;
} option_spec;

static const option_spec specs[OPT_COUNT] = {
#define X(id, name, argument, commands, help) [id] = {name, argument, help, commands},
#include "cli/options.def"
#undef X
};

enum { MAX_HELP = 512 }; /* with the end of the text */
#define X(id, name, argument, commands, help) _Static_assert(sizeof help <= MAX_HELP, name);
#include "cli/options.def"
#undef X

/* What the help says first, and how many files a command takes beside its options. */
static const struct {
    cli_command command;
    const char *usage, *purpose;
    int files;
} commands[] = {
    {CLI_TRAIN, "train [options]",
     "Trains a model on all devices, with the arithmetic of torch.nn.DataParallel.", 0},
    {CLI_EVAL, "eval --init FILE [options]",
     "Loss, and accuracy or IoU and F1, of a checkpoint; model and normalisation are\nread from it.", 0},
    {CLI_PREDICT, "predict --init FILE --data PATH... -o PATH [options]",
     "Masks, or class labels, of pictures (JPEG, PNG) by the model of a checkpoint.", INT_MAX},
    {CLI_BENCH, "bench [options]",
     "How fast all devices train against one of them, by batch size, and what the time\nof a step goes to.",
     0},
    {CLI_EXPLAIN, "explain LESSON [options]",
     "Lessons whose figures the engine that trains measures or computes here and now.", 0},
    {CLI_DEVICES, "devices [options]",
     "The devices of this machine, their memory, and the links between them, measured.", 0},
    {CLI_CONVERT, "convert IN OUT",
     "Weights between PyTorch's .pt or .pth and .safetensors; OUT's name says which it\n"
     "becomes. Of a .pt the state dict is read, and nothing in it is executed.",
     2},
    {CLI_REPORT, "report RUN -o FILE",
     "One page of HTML about a run, from its log: RUN is a log.jsonl, or the directory\nof the run. The page "
     "needs no other file and no network.",
     1},
};

enum { MAX_OPTION_NAME = 64 };

static int row_of(cli_command command)
{
    int row = 0;
    while (commands[row].command != command)
        row++;
    return row;
}

static bool belongs(int option, cli_command command)
{
    return (specs[option].commands & (int)command) != 0;
}

static int find_option(cli_command command, const char *name)
{
    for (int i = 0; i < OPT_COUNT; i++)
        if (belongs(i, command) && strcmp(specs[i].name, name) == 0)
            return i;
    return -1;
}

/* What PyTorch's examples and other programs call an option; NULL if nothing is called so. */
static const char *called_elsewhere(cli_command command, const char *name)
{
    static const struct {
        const char *elsewhere;
        cli_option here;
    } names[] = {{"epoch", OPT_N_EPOCH},    {"epochs", OPT_N_EPOCH},   {"arch", OPT_MODEL},
                 {"batch", OPT_BATCH_SIZE}, {"learning-rate", OPT_LR}, {"wd", OPT_WEIGHT_DECAY},
                 {"gpus", OPT_DEVICE_IDS},  {"gpu", OPT_DEVICE_IDS},   {"workers", OPT_NUM_WORKERS}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].elsewhere, name) == 0 && belongs((int)names[i].here, command))
            return specs[names[i].here].name;
    return NULL;
}

static dp_status unknown_option(cli_command command, const char *name, dp_error *err)
{
    const char *names[OPT_COUNT];
    size_t count = 0;
    for (int i = 0; i < OPT_COUNT; i++)
        if (belongs(i, command))
            names[count++] = specs[i].name;
    const char *near = called_elsewhere(command, name);
    if (!near)
        near = dp_nearest_name(name, names, count);
    if (near)
        return dp_fail(err, DP_ERROR_USAGE, "unknown option '--%s'; did you mean '--%s'?", name, near);
    return dp_fail(err, DP_ERROR_USAGE, "unknown option '--%s'; --help lists the options", name);
}

/* Copies an option's name with '_' as '-', up to '=' or the end. */
static void option_name(const char *argument, char name[MAX_OPTION_NAME])
{
    size_t n = 0;
    for (const char *c = argument + 2; *c && *c != '=' && n + 1 < MAX_OPTION_NAME; c++)
        name[n++] = *c == '_' ? '-' : *c;
    name[n] = 0;
}

/* An argument that is no option: a file, if the command takes one more. They stand together. */
static dp_status take_file(char *const *at, cli_options *out, dp_error *err)
{
    int row = row_of(out->command);
    const char *argument = *at;
    if (commands[row].files == 0 || argument[0] == '-')
        return dp_fail(err, DP_ERROR_USAGE, "unexpected argument '%s': options start with --", argument);
    if (out->file_count == commands[row].files)
        return dp_fail(err, DP_ERROR_USAGE, "unexpected argument '%s': usage is dptrain %s", argument,
                       commands[row].usage);
    if (out->file_count == 0)
        out->files = at;
    if (at != out->files + out->file_count)
        return dp_fail(err, DP_ERROR_USAGE, "unexpected argument '%s': name all files in one place",
                       argument);
    out->file_count++;
    return DP_OK;
}

/* --data-dir DIR is --data segmentation:DIR. */
static dp_status take_data_dir(cli_options *o, dp_error *err)
{
    const char *folder = o->value[OPT_DATA_DIR];
    if (!folder)
        return DP_OK;
    if (!*folder ||
        snprintf(o->data_text, sizeof o->data_text, "segmentation:%s", folder) >= (int)sizeof o->data_text)
        return dp_fail(err, DP_ERROR_USAGE, "--data-dir '%.100s': the name of a directory is needed", folder);
    if (o->value[OPT_DATA] && strcmp(o->value[OPT_DATA], o->data_text) != 0)
        return dp_fail(err, DP_ERROR_USAGE, "--data-dir is short for --data %s: the two exclude each other",
                       o->data_text);
    o->value[OPT_DATA] = o->data_text;
    return DP_OK;
}

dp_status cli_parse(cli_command command, int argc, char **argv, cli_options *out, dp_error *err)
{
    *out = (cli_options){.command = command};
    for (int i = 0; i < argc; i++) {
        const char *argument = argv[i];
        if (strcmp(argument, "-o") == 0 && belongs(OPT_OUTPUT, command))
            argument = "--output";
        if (strcmp(argument, "-h") == 0)
            argument = "--help";
        if (strncmp(argument, "--", 2) != 0 || !argument[2]) {
            DP_TRY(take_file(&argv[i], out, err));
            continue;
        }
        char name[MAX_OPTION_NAME];
        option_name(argument, name);
        int option = find_option(command, name);
        if (option < 0)
            return unknown_option(command, name, err);
        const char *equals = strchr(argument, '=');
        if (!specs[option].argument) {
            if (equals)
                return dp_fail(err, DP_ERROR_USAGE, "option '--%s' takes no value", name);
            out->value[option] = "";
        } else if (equals)
            out->value[option] = equals + 1;
        else if (i + 1 < argc)
            out->value[option] = argv[++i];
        else
            return dp_fail(err, DP_ERROR_USAGE, "option '--%s' needs a value: %s", name,
                           specs[option].argument);
    }
    return take_data_dir(out, err);
}

const char *cli_option_name(cli_option option)
{
    return specs[option].name;
}

bool cli_given(const cli_options *o, cli_option option)
{
    return o->value[option] != NULL;
}

/* ---- help ---- */

/* Prints text from column 32 on, wrapped at 80 columns. */
static void print_wrapped(const char *text)
{
    const int indent = 32, width = 80 - 32;
    while (*text) {
        size_t length = strlen(text), take = length;
        if (length > (size_t)width) {
            take = (size_t)width;
            while (take > 0 && text[take] != ' ')
                take--;
            if (take == 0)
                take = (size_t)width;
        }
        printf("%.*s\n", (int)take, text);
        text += take;
        while (*text == ' ')
            text++;
        if (*text)
            printf("%*s", indent, "");
    }
}

/* Whether the alternative at `at`, which begins with {, is for the command of that name. */
static bool is_for(const char *at, const char *command)
{
    size_t length = strcspn(command, " ");
    bool own = strncmp(at + 1, command, length) == 0 && at[1 + length] == ':';
    return own || strncmp(at + 1, "else:", strlen("else:")) == 0;
}

/* The text for one command: of alternatives in a row, the first that is for it. */
static void choose_text(const char *text, const char *command, char *out)
{
    while (*text) {
        const char *chosen = NULL;
        if (*text != '{') {
            *out++ = *text++;
            continue;
        }
        for (; *text == '{'; text += strcspn(text, "}") + 1)
            if (!chosen && is_for(text, command))
                chosen = text + strcspn(text, " ") + 1;
        if (chosen)
            for (; *chosen != '}'; chosen++)
                *out++ = *chosen;
    }
    *out = '\0';
}

/* Headings of the help: each stands before the first of its options. */
static const struct {
    cli_option first;
    const char *title;
} groups[] = {{OPT_MODEL, "Model"},    {OPT_DATA, "Data"},  {OPT_BATCH_SIZE, "Training"},
              {OPT_DEVICE, "Devices"}, {OPT_INIT, "Files"}, {OPT_PRINT_FREQ, "Output"}};

static void print_option(int option, const char *command)
{
    char left[64], text[MAX_HELP];
    int n = snprintf(left, sizeof left, "  --%s%s%s", specs[option].name, specs[option].argument ? " " : "",
                     specs[option].argument ? specs[option].argument : "");
    if (n < 31)
        printf("%-32s", left);
    else
        printf("%s\n%32s", left, "");
    choose_text(specs[option].help, command, text);
    print_wrapped(text);
}

void cli_print_help(cli_command command)
{
    int row = row_of(command);
    printf("usage: dptrain %s\n\n%s\nDefaults stand in brackets.\n", commands[row].usage,
           commands[row].purpose);
    if (command == CLI_EXPLAIN)
        cli_print_lessons();
    const int count = sizeof groups / sizeof *groups;
    for (int g = 0; g < count; g++) {
        int end = g + 1 < count ? (int)groups[g + 1].first : OPT_COUNT;
        bool titled = false;
        for (int i = (int)groups[g].first; i < end; i++) {
            if (!belongs(i, command))
                continue;
            if (!titled)
                printf("\n%s:\n", groups[g].title);
            titled = true;
            print_option(i, commands[row].usage);
        }
    }
}

/* ---- values ---- */

static dp_status bad_value(cli_option option, const char *text, const char *wanted, dp_error *err)
{
    return dp_fail(err, DP_ERROR_USAGE, "--%s '%s': %s", specs[option].name, text, wanted);
}

static bool parse_integer(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    if (!(*text == '-' || (*text >= '0' && *text <= '9')))
        return false;
    *out = strtoll(text, &end, 10);
    return !*end && errno == 0;
}

static bool parse_number(const char *text, double *out)
{
    char *end;
    if (!(*text == '-' || *text == '.' || (*text >= '0' && *text <= '9')) || strpbrk(text, "xX"))
        return false;
    *out = strtod(text, &end);
    return !*end && isfinite(*out);
}

/* The limits of a type are named only to those who went beyond them: elsewhere they would be noise. */
dp_status cli_check_integer(const char *name, const char *text, int64_t low, int64_t high, int64_t *out,
                            dp_error *err)
{
    char wanted[96];
    if (high == INT64_MAX && strtod(text, NULL) < (double)INT64_MAX)
        snprintf(wanted, sizeof wanted, "a whole number of at least %lld is needed", (long long)low);
    else
        snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld is needed", (long long)low,
                 (long long)high);
    int64_t value;
    if (!parse_integer(text, &value) || value < low || value > high)
        return dp_fail(err, DP_ERROR_USAGE, "%s '%s': %s", name, text, wanted);
    *out = value;
    return DP_OK;
}

static dp_status check_integer(cli_option option, const char *text, int64_t low, int64_t high, int64_t *out,
                               dp_error *err)
{
    char name[MAX_OPTION_NAME + 2];
    snprintf(name, sizeof name, "--%s", specs[option].name);
    return cli_check_integer(name, text, low, high, out, err);
}

static dp_status check_number(cli_option option, const char *text, double low, double high, double *out,
                              dp_error *err)
{
    char wanted[96], from[32] = "", to[32] = "";
    if (low == CLI_ABOVE_0)
        snprintf(from, sizeof from, " above 0");
    else if (low > -FLT_MAX || strtod(text, NULL) < low)
        snprintf(from, sizeof from, " of at least %g", low);
    if (high == CLI_BELOW_1)
        snprintf(to, sizeof to, " and below 1");
    else if (high < FLT_MAX || strtod(text, NULL) > high)
        snprintf(to, sizeof to, " %s at most %g", *from ? "and" : "of", high);
    snprintf(wanted, sizeof wanted, "a number%s%s is needed", from, to);
    double value;
    if (!parse_number(text, &value) || value < low || value > high)
        return bad_value(option, text, wanted, err);
    *out = value;
    return DP_OK;
}

dp_status cli_integer(const cli_options *o, cli_option option, int64_t low, int64_t high, int64_t *out,
                      dp_error *err)
{
    return o->value[option] ? check_integer(option, o->value[option], low, high, out, err) : DP_OK;
}

dp_status cli_number(const cli_options *o, cli_option option, double low, double high, double *out,
                     dp_error *err)
{
    return o->value[option] ? check_number(option, o->value[option], low, high, out, err) : DP_OK;
}

dp_status cli_choice(const cli_options *o, cli_option option, const char *const *names, int *out,
                     dp_error *err)
{
    const char *text = o->value[option];
    if (!text)
        return DP_OK;
    size_t count = 0, used = 0;
    char all[256] = "";
    for (; names[count]; count++) {
        if (strcmp(names[count], text) == 0) {
            *out = (int)count;
            return DP_OK;
        }
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", count ? ", " : "", names[count]);
    }
    const char *near = dp_nearest_name(text, names, count);
    if (near)
        return dp_fail(err, DP_ERROR_USAGE, "--%s '%s' is unknown; did you mean '%s'?", specs[option].name,
                       text, near);
    return dp_fail(err, DP_ERROR_USAGE, "--%s '%s' is unknown: one of %s is needed", specs[option].name, text,
                   all);
}

/* Calls `each` for every comma-separated part, copied into a buffer. */
typedef dp_status (*part_reader)(void *state, int index, const char *part, dp_error *err);

static dp_status for_parts(cli_option option, const char *text, int max, part_reader each, void *state,
                           int *count, dp_error *err)
{
    *count = 0;
    for (const char *at = text;; at++) {
        char part[64];
        size_t n = strcspn(at, ",");
        if (n == 0 || n >= sizeof part)
            return bad_value(option, text, "a comma-separated list of numbers is needed", err);
        if (*count == max)
            return dp_fail(err, DP_ERROR_USAGE, "--%s '%s': at most %d numbers are possible",
                           specs[option].name, text, max);
        memcpy(part, at, n);
        part[n] = 0;
        DP_TRY(each(state, (*count)++, part, err));
        at += n;
        if (!*at)
            return DP_OK;
    }
}

typedef struct list_reader {
    cli_option option;
    int64_t low, high, *integers;
    double low_number, high_number, *numbers;
} list_reader;

static dp_status read_part(void *state, int index, const char *part, dp_error *err)
{
    const list_reader *r = state;
    if (r->integers)
        return check_integer(r->option, part, r->low, r->high, &r->integers[index], err);
    return check_number(r->option, part, r->low_number, r->high_number, &r->numbers[index], err);
}

dp_status cli_integers(const cli_options *o, cli_option option, int64_t low, int64_t high, int max,
                       int64_t *out, int *count, dp_error *err)
{
    *count = 0;
    list_reader r = {.option = option, .low = low, .high = high, .integers = out};
    return o->value[option] ? for_parts(option, o->value[option], max, read_part, &r, count, err) : DP_OK;
}

dp_status cli_numbers(const cli_options *o, cli_option option, double low, double high, int max, double *out,
                      int *count, dp_error *err)
{
    *count = 0;
    list_reader r = {.option = option, .low_number = low, .high_number = high, .numbers = out};
    return o->value[option] ? for_parts(option, o->value[option], max, read_part, &r, count, err) : DP_OK;
}

dp_status cli_size(const cli_options *o, cli_option option, int64_t size[2], dp_error *err)
{
    const char *text = o->value[option];
    if (!text)
        return DP_OK;
    const int64_t limit = 1 << 16;
    int64_t got[2] = {0, 0};
    const char *c = text;
    for (int i = 0; i < 2; i++) {
        const char *start = c;
        while (*c >= '0' && *c <= '9' && got[i] <= limit)
            got[i] = 10 * got[i] + (*c++ - '0');
        if (c == start || *c++ != (i == 0 ? 'x' : '\0') || got[i] < 1 || got[i] > limit)
            return dp_fail(err, DP_ERROR_USAGE,
                           "--%s '%s': height and width from 1 to %lld are needed, like 224x224",
                           specs[option].name, text, (long long)limit);
    }
    memcpy(size, got, sizeof got);
    return DP_OK;
}

dp_status cli_bytes(const cli_options *o, cli_option option, uint64_t *out, dp_error *err)
{
    static const char units[] = "kMG";
    const char *text = o->value[option], *c = text;
    if (!text)
        return DP_OK;
    uint64_t bytes = 0;
    const uint64_t limit = (uint64_t)1 << 60;
    for (; *c >= '0' && *c <= '9' && bytes <= limit; c++)
        bytes = 10 * bytes + (uint64_t)(*c - '0');
    const char *unit = c > text && *c ? strchr(units, *c) : NULL;
    for (int i = 0; unit && bytes <= limit && i <= unit - units; i++)
        bytes *= 1000;
    if (c == text || c[unit != NULL] || bytes < 1 || bytes > limit)
        return dp_fail(err, DP_ERROR_USAGE,
                       "--%s '%s': a number of bytes is needed, like 800000000, 800M or 2G",
                       specs[option].name, text);
    *out = bytes;
    return DP_OK;
}
