/* `dptrain try-links DEVICES SECONDS A-B,C-D,...`: what dp_context_try_links runs, in a process that may
 * hang. No command for people: the help does not list it. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"

enum { START_SECONDS = 60 };

static void say(int a, int b, const char *what, const char *more)
{
    printf("%d %d %s%s\n", a, b, what, more);
    fflush(stdout);
}

/* Should whoever asked be gone when the link hangs, the alarm ends this process. */
static dp_status try_pair(dp_context *context, int a, int b, int seconds, dp_error *err)
{
    bool intact;
    alarm(START_SECONDS);
    dp_status status = dp_context_try_link(context, a, a, &intact, err);
    if (status == DP_OK)
        status = dp_context_try_link(context, b, b, &intact, err);
    if (status == DP_OK) {
        say(a, b, "begin", "");
        alarm((unsigned)seconds);
        status = dp_context_try_link(context, a, b, &intact, err);
    }
    if (status == DP_OK)
        say(a, b, intact ? "sound" : "damaged", "");
    else
        say(a, b, "failed: ", err->message);
    return status;
}

dp_status cli_try_links(int argc, char **argv, int *code, dp_error *err)
{
    (void)code;
    int64_t devices = 0, seconds = 0;
    if (argc != 5)
        return dp_fail(err, DP_ERROR_USAGE, "try-links needs DEVICES SECONDS A-B,C-D,...");
    DP_TRY(cli_check_integer("DEVICES", argv[2], 1, DP_ENGINE_MAX_DEVICES, &devices, err));
    DP_TRY(cli_check_integer("SECONDS", argv[3], 1, 3600, &seconds, err));
    dp_context_config config = dp_context_defaults();
    config.backend = DP_BACKEND_CUDA;
    config.logical_devices = (int)devices;
    config.p2p = DP_P2P_ON;
    dp_context *context;
    DP_TRY(dp_context_open(&config, &context, err));
    dp_status status = DP_OK;
    int a, b, used;
    for (const char *at = argv[4]; status == DP_OK && *at; at += used + (at[used] == ',')) {
        used = 0;
        if (sscanf(at, "%d-%d%n", &a, &b, &used) != 2 || (at[used] && at[used] != ','))
            status = dp_fail(err, DP_ERROR_USAGE, "'%s': pairs like 0-1,0-2 are needed", argv[4]);
        else
            status = try_pair(context, a, b, (int)seconds, err);
    }
    dp_context_close(context);
    return status;
}
