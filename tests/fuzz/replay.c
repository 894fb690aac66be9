/* In the place of libFuzzer's main: runs every file of the directories it is given through the target once.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes =
        malloc(1 << 20); /* exactly as long as the input, so that a sanitizer sees what is beyond */
    size_t size = f && bytes ? fread(bytes, 1, 1 << 20, f) : 0;
    int failed = !f || !bytes || ferror(f) || size == 1 << 20;
    if (f)
        fclose(f);
    uint8_t *exact = failed ? NULL : realloc(bytes, size ? size : 1);
    if (exact)
        LLVMFuzzerTestOneInput(exact, size);
    else
        fprintf(stderr, "replay: cannot read '%s'\n", path);
    free(exact ? exact : bytes);
    return !exact;
}

int main(int argc, char **argv)
{
    int run = 0, failed = 0;
    for (int a = 1; a < argc; a++) {
        struct dirent **names;
        int count = scandir(argv[a], &names, NULL, alphasort);
        for (int i = 0; i < count; i++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[a], names[i]->d_name);
            if (names[i]->d_name[0] != '.') {
                failed += replay_file(path);
                run++;
            }
            free(names[i]);
        }
        if (count >= 0)
            free(names);
    }
    /* As Check counts, for the scripts that add up: an input that breaks its target has ended the program
     * before. */
    printf("%d%%: Checks: %d, Failures: %d, Errors: 0\n", run ? 100 * (run - failed) / run : 0, run, failed);
    return failed || !run;
}
