#include <limits.h>
#include <stdio.h>

#include "cli/cli.h"
#include "dptrain/report.h"

dp_status cli_report(int argc, char **argv, int *code, dp_error *err)
{
    (void)code;
    cli_options o;
    DP_TRY(cli_parse(CLI_REPORT, argc - 2, argv + 2, &o, err));
    if (cli_given(&o, OPT_HELP)) {
        cli_print_help(CLI_REPORT);
        return DP_OK;
    }
    const char *path = o.value[OPT_PAGE];
    if (o.file_count == 0)
        return dp_fail(err, DP_ERROR_USAGE, "report needs a run: a log.jsonl, or the directory of one");
    if (!path || !*path)
        return dp_fail(err, DP_ERROR_USAGE, "report needs the name of the page to write: -o FILE");
    char log[PATH_MAX];
    if (snprintf(log, sizeof log, "%s/log.jsonl", o.files[0]) >= (int)sizeof log)
        return dp_fail(err, DP_ERROR_IO, "cannot read '%.100s...': the name is too long", o.files[0]);
    if (cli_same_file(o.files[0], path) || cli_same_file(log, path))
        return dp_fail(err, DP_ERROR_USAGE, "'%s' would be written over the log", path);
    DP_TRY(dp_report_write(o.files[0], path, err));
    printf("%s\n", path);
    return DP_OK;
}
