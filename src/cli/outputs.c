/* Files for results: --json FILE, --csv FILE. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

static dp_status failed(const cli_output *out, const char *what, dp_error *err)
{
    return dp_fail(err, DP_ERROR_IO, "cannot %s --%s '%s': %s", what, out->option, out->path,
                   strerror(errno));
}

dp_status cli_output_open(const cli_options *o, cli_option option, const char *name, cli_output *out,
                          dp_error *err)
{
    *out = (cli_output){.option = name, .path = o->value[option]};
    if (!out->path)
        return DP_OK;
    if (!*out->path)
        return dp_fail(err, DP_ERROR_USAGE, "--%s needs the name of a file", name);
    out->created = access(out->path, F_OK) != 0;
    int fd = open(out->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return failed(out, "write", err);
    out->file = fdopen(fd, "w");
    if (!out->file) {
        failed(out, "write", err);
        close(fd);
        return DP_ERROR_IO;
    }
    return DP_OK;
}

dp_status cli_output_begin(cli_output *out, dp_error *err)
{
    struct stat s;
    int fd = fileno(out->file);
    if (fstat(fd, &s) != 0 || (S_ISREG(s.st_mode) && ftruncate(fd, 0) != 0))
        return failed(out, "write", err);
    return DP_OK;
}

dp_status cli_output_close(cli_output *out, dp_error *err)
{
    FILE *file = out->file;
    out->file = NULL;
    bool bad = fflush(file) != 0 || ferror(file);
    int first = errno;
    bad |= fclose(file) != 0 && !bad;
    if (!bad)
        return DP_OK;
    errno = first ? first : errno;
    return failed(out, "write", err);
}

void cli_output_abandon(cli_output *out)
{
    if (!out->file)
        return;
    fclose(out->file);
    out->file = NULL;
    if (out->created)
        unlink(out->path);
}
