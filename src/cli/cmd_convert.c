#include <stdio.h>

#include "base/text.h"
#include "cli/cli.h"

static dp_status convert(const char *from, const char *to, dp_error *err)
{
    int tensors;
    uint64_t bytes;
    char size[32], count[32];
    if (cli_same_file(from, to))
        return dp_fail(err, DP_ERROR_USAGE, "'%s' would be written over the file that is converted", to);
    DP_TRY(dp_weights_convert(from, to, &tensors, &bytes, err));
    printf("%s: %s tensor%s, %s\n", to, dp_format_count(tensors, count, sizeof count),
           tensors == 1 ? "" : "s", dp_format_bytes(bytes, size, sizeof size));
    return DP_OK;
}

dp_status cli_convert(int argc, char **argv, int *code, dp_error *err)
{
    (void)code;
    cli_options options;
    DP_TRY(cli_parse(CLI_CONVERT, argc - 2, argv + 2, &options, err));
    if (cli_given(&options, OPT_HELP)) {
        cli_print_help(CLI_CONVERT);
        return DP_OK;
    }
    if (options.file_count < 2)
        return dp_fail(err, DP_ERROR_USAGE, "convert needs two files, IN and OUT");
    return convert(options.files[0], options.files[1], err);
}
