#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"

static int exit_code(dp_status status)
{
    switch (status) {
    case DP_OK:
        return 0;
    case DP_ERROR_USAGE:
    case DP_ERROR_MISMATCH:
        return 2;
    case DP_ERROR_NONFINITE:
        return 3;
    default:
        return 1;
    }
}

static const struct {
    const char *name, *purpose;
    dp_status (*run)(int argc, char **argv, int *code, dp_error *err);
} commands[] = {
    {"train", "train a model", cli_train},
    {"eval", "loss, and accuracy or IoU and F1, of a checkpoint", cli_eval},
    {"predict", "masks or class labels of pictures", cli_predict},
    {"bench", "training speed of several devices against one", cli_bench},
    {"explain", "lessons: the split, the loss, the imbalance, the speed", cli_explain},
    {"devices", "the devices of this machine and the links between them", cli_devices},
    {"report", "a page about a run: curves, timeline, memory, verdict", cli_report},
    {"convert", "weights between PyTorch's .pt and safetensors", cli_convert},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(void)
{
    printf("usage: dptrain COMMAND [options]\n\n"
           "Trains neural networks on all devices of one machine, with the arithmetic of\n"
           "torch.nn.DataParallel.\n\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  %-8s %s\n", commands[i].name, commands[i].purpose);
    printf("\ndptrain COMMAND --help lists a command's options; --version prints the version.\n");
}

static dp_status no_command(dp_error *err)
{
    char list[128] = "";
    for (size_t i = 0, used = 0; i < COMMANDS && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 i == 0             ? ""
                                 : i + 1 < COMMANDS ? ", "
                                                    : " or ",
                                 commands[i].name);
    return dp_fail(err, DP_ERROR_USAGE, "a command is needed: %s; --help says more", list);
}

static dp_status run(int argc, char **argv, int *code, dp_error *err)
{
    if (argc < 2)
        return no_command(err);
    const char *command = argv[1], *names[COMMANDS];
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0) {
        print_usage();
        return DP_OK;
    }
    if (strcmp(command, "--version") == 0) {
        printf("dptrain %s\n", DP_VERSION);
        return DP_OK;
    }
    for (int i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(command, names[i]) == 0)
            return commands[i].run(argc, argv, code, err);
    }
    if (strcmp(command, "try-links") == 0)
        return cli_try_links(argc, argv, code, err);
    const char *near = dp_nearest_name(command, names, COMMANDS);
    if (near)
        return dp_fail(err, DP_ERROR_USAGE, "unknown command '%s'; did you mean '%s'?", command, near);
    return dp_fail(err, DP_ERROR_USAGE, "unknown command '%s'; --help lists the commands", command);
}

/* A standard stream that the caller closed would lend its number to the next file that is opened, and what
 * is printed would end up in there. Reading fails on such a stand-in, and so does writing: it is noticed. */
static void fill_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* One line, whatever a file name or an argument held. */
static void print_error(dp_error *err)
{
    for (char *c = err->message; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    fprintf(stderr, "dptrain: error: %s\n", err->message);
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe and a file at its size limit are failed writes, */
    signal(SIGXFSZ, SIG_IGN); /* reported like any other */
    dp_error err = {0};
    int code = 0;
    dp_status status = run(argc, argv, &code, &err);
    if (status == DP_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = dp_fail(&err, DP_ERROR_IO, "cannot write to standard output: %s", strerror(errno));
    if (status != DP_OK) {
        fflush(stdout);
        print_error(&err);
    }
    return status == DP_OK ? code : exit_code(status);
}
