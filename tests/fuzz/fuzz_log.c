/* The reader of a run's log, and the page that is made of what it found. */
#include "dptrain/report.h"

#include <stdio.h>
#include <unistd.h>

#include "report/run.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dp_run run;
    dp_error err = {0};
    fuzz_check(dp_run_parse((const char *)data, size, &run, &err), &err);
    dp_run_clear(&run);
    err = (dp_error){0};
    char page[64];
    snprintf(page, sizeof page, "/tmp/dptrain-fuzz-%ld.html", (long)getpid());
    fuzz_check(dp_report_write(fuzz_file(data, size), page, &err), &err);
    unlink(page);
    return 0;
}
