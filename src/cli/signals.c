/* SIGINT and SIGTERM: the first asks the run to stop, a second one ends the program at once. */
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "cli/cli.h"

enum { EXIT_OF_SIGNAL = 128 }; /* as a shell reports a program that a signal ended */

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    if (caught)
        _exit(EXIT_OF_SIGNAL + number);
    caught = number;
}

void cli_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool cli_stop_wanted(void *unused)
{
    (void)unused;
    return caught != 0;
}

int cli_interrupted_code(void)
{
    return EXIT_OF_SIGNAL + caught;
}
