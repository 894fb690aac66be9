/* The command line: a command's number, then arguments that end with a zero each. What was parsed is then
 * read in every way in which a command could. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "tests/fuzz/fuzz.h"

enum { MAX_ARGUMENTS = 32 };

static void read_values(const cli_options *o)
{
    static const char *const names[] = {"auto", "chunk", "gather", NULL};
    for (int option = 0; option < OPT_COUNT; option++) {
        dp_error err = {0};
        int64_t integers[4];
        double numbers[4];
        int choice = 0, count;
        fuzz_check(cli_integer(o, option, 1, INT64_MAX, &integers[0], &err), &err);
        fuzz_check(cli_integer(o, option, -5, 64, &integers[0], &err), &err);
        fuzz_check(cli_number(o, option, CLI_ABOVE_0, FLT_MAX, &numbers[0], &err), &err);
        fuzz_check(cli_number(o, option, 0, CLI_BELOW_1, &numbers[0], &err), &err);
        fuzz_check(cli_choice(o, option, names, &choice, &err), &err);
        fuzz_check(cli_integers(o, option, 0, 1 << 20, 4, integers, &count, &err), &err);
        fuzz_check(cli_numbers(o, option, -FLT_MAX, FLT_MAX, 4, numbers, &count, &err), &err);
        if (choice < 0 || choice > 2 || count < 0 || count > 4)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *arguments[MAX_ARGUMENTS];
    if (!text || size == 0) {
        free(text);
        return 0;
    }
    memcpy(text, data, size);
    text[size] = 0;
    int count = 0;
    for (char *at = text + 1; at < text + size && count < MAX_ARGUMENTS; at += strlen(at) + 1)
        arguments[count++] = at;
    cli_options options;
    dp_error err = {0};
    dp_data_config config;
    dp_status status = cli_parse(text[0] == 'c' ? CLI_CONVERT
                                 : text[0] % 2  ? CLI_TRAIN
                                                : CLI_EVAL,
                                 count, arguments, &options, &err);
    fuzz_check(status, &err);
    if (status == DP_OK) {
        read_values(&options);
        fuzz_check(cli_data_config(&options, &config, &err), &err);
        fuzz_check(cli_check_files(&options, "model", "fashion-mnist", &err), &err);
    }
    free(text);
    return 0;
}
