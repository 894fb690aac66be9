/* Files that a run names: none may be written over another. */
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"

/* The path that a file has or would have: links resolved, its name kept if it does not exist yet. */
static bool full_path(const char *path, char out[PATH_MAX])
{
    if (realpath(path, out))
        return true;
    char folder[PATH_MAX], resolved[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int length = slash ? (int)(slash - path) + 1 : 0;
    if (snprintf(folder, sizeof folder, "%.*s", length, path) >= (int)sizeof folder)
        return false;
    if (!realpath(length ? folder : ".", resolved))
        snprintf(resolved, sizeof resolved, "%.*s", length, folder); /* compared as it is written */
    return snprintf(out, PATH_MAX, "%s/%s", resolved, name) < PATH_MAX;
}

bool cli_same_file(const char *a, const char *b)
{
    struct stat x, y;
    if (stat(a, &x) == 0 && stat(b, &y) == 0)
        return x.st_dev == y.st_dev && x.st_ino == y.st_ino && S_ISREG(x.st_mode);
    char full_a[PATH_MAX], full_b[PATH_MAX];
    return full_path(a, full_a) && full_path(b, full_b) && strcmp(full_a, full_b) == 0;
}

bool cli_is_picture(const char *path)
{
    static const unsigned char jpeg[] = {0xff, 0xd8, 0xff}, png[] = {0x89, 'P', 'N', 'G'};
    unsigned char first[sizeof png] = {0};
    struct stat st;
    FILE *f = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? fopen(path, "rbe") : NULL;
    if (!f)
        return false;
    size_t n = fread(first, 1, sizeof first, f);
    fclose(f);
    return n == sizeof first &&
           (memcmp(first, jpeg, sizeof jpeg) == 0 || memcmp(first, png, sizeof png) == 0);
}

/* Is it one of the files that idx:DIR reads? */
static bool is_idx(const char *path, const char *data_source)
{
    static const char idx[] = "idx:";
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char inside[PATH_MAX];
    if (!data_source || strncmp(data_source, idx, sizeof idx - 1) != 0 || fnmatch("*-ubyte*", name, 0) != 0)
        return false;
    return snprintf(inside, sizeof inside, "%s/%s", data_source + sizeof idx - 1, name) <
               (int)sizeof inside &&
           cli_same_file(path, inside);
}

typedef struct named_file {
    const char *option, *path; /* path: NULL if it was not given */
} named_file;

/* Is it a name that the run itself writes in its directory? The log may have its own. */
static bool reserved(const char *path, const char *model_dir, bool is_log)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    static const char *const own_names[] = {".lock", "model_best.safetensors", "model_epoch_*.safetensors",
                                            "resume.json", "resume_state_*.safetensors"};
    bool known = !is_log && strcmp(name, "log.jsonl") == 0;
    for (size_t i = 0; i < sizeof own_names / sizeof *own_names; i++)
        known |= fnmatch(own_names[i], name, 0) == 0;
    if (!known)
        return false;
    char own[PATH_MAX];
    return snprintf(own, sizeof own, "%s/%s", model_dir, name) < (int)sizeof own && cli_same_file(path, own);
}

dp_status cli_check_files(const cli_options *o, const char *model_dir, const char *data_source, dp_error *err)
{
    static const char safetensors[] = "safetensors:";
    bool from_file = data_source && strncmp(data_source, safetensors, sizeof safetensors - 1) == 0;
    const named_file inputs[] = {{"--init", o->value[OPT_INIT]},
                                 {"--data", from_file ? data_source + sizeof safetensors - 1 : NULL}};
    const named_file outputs[] = {{"--save", o->value[OPT_SAVE]},
                                  {"--log", o->value[OPT_LOG]},
                                  {"--trace", o->value[OPT_TRACE]},
                                  {"--report", o->value[OPT_REPORT]}};
    enum { OUTPUTS = sizeof outputs / sizeof outputs[0] };
    if (!*model_dir)
        return dp_fail(err, DP_ERROR_USAGE, "--model-dir needs the name of a directory");
    for (int i = 0; i < OUTPUTS; i++) {
        const named_file *out = &outputs[i];
        if (!out->path)
            continue;
        if (!*out->path)
            return dp_fail(err, DP_ERROR_USAGE, "%s needs the name of a file", out->option);
        for (int k = 0; k < 2; k++)
            if (inputs[k].path && cli_same_file(out->path, inputs[k].path))
                return dp_fail(err, DP_ERROR_USAGE, "%s '%s' would be written over the file of %s",
                               out->option, out->path, inputs[k].option);
        if (cli_is_picture(out->path) || is_idx(out->path, data_source))
            return dp_fail(err, DP_ERROR_USAGE, "%s '%s' would be written over data", out->option, out->path);
        if (reserved(out->path, model_dir, out->path == o->value[OPT_LOG]))
            return dp_fail(err, DP_ERROR_USAGE, "%s '%s' is a name that the run itself uses in '%s'",
                           out->option, out->path, model_dir);
        for (int k = 0; k < i; k++)
            if (outputs[k].path && cli_same_file(out->path, outputs[k].path))
                return dp_fail(err, DP_ERROR_USAGE, "%s and %s name the same file, '%s'", outputs[k].option,
                               out->option, outputs[k].path);
    }
    return DP_OK;
}
