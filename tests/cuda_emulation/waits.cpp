// Waits by who makes them, for tests that leave one out and want it to be missed (tests/tools/waits.py). A
// place is an offset into a module, "libdptrain_cuda.so+1a2b": the same in every run of a build.
#include "internal.h"

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>

namespace emulation
{

// Of the call before the address that it returns to; empty where no module is known, as behind main.
static std::string place_of(const void *return_address)
{
    Dl_info module;
    auto *call = static_cast<const char *>(return_address) - 1;
    if (!dladdr(call, &module) || !module.dli_fname)
        return "";
    const char *slash = strrchr(module.dli_fname, '/');
    char offset[32];
    snprintf(offset, sizeof offset, "+%zx", (size_t)(call - (const char *)module.dli_fbase));
    return std::string(slash ? slash + 1 : module.dli_fname) + offset;
}

// Innermost first.
static std::vector<std::string> callers_from(const void *caller)
{
    void *frames[32];
    int count = backtrace(frames, 32), first = 0;
    while (first < count && frames[first] != caller)
        first++;
    std::vector<std::string> places;
    for (int i = first; i < count; i++)
        places.push_back(place_of(frames[i]));
    return places;
}

static void write_down(const std::vector<std::string> &places)
{
    std::string line;
    for (const std::string &place : places)
        line += place + " ";
    Guard guard(runtime().mutex);
    if (!runtime().wait_callers.insert(line).second)
        return;
    FILE *file = fopen(settings().waits_path.c_str(), "a");
    if (!file || fprintf(file, "%s\n", line.c_str()) < 0 || fclose(file) != 0)
        emulation_fail("cannot write '%s'", settings().waits_path.c_str());
}

bool skips_wait(const void *caller)
{
    const Settings &s = settings();
    if (s.waits_path.empty() && s.skipped_waits.empty())
        return false;
    Quiet quiet;
    std::vector<std::string> places = callers_from(caller);
    if (!s.waits_path.empty())
        write_down(places);
    for (const std::string &place : places)
        if (s.skipped_waits.count(place))
            return true;
    return false;
}

} // namespace emulation
