// Fault injection. DPTRAIN_EMULATED_FAULT="cudaMalloc:2:2,cudaMemcpyPeerAsync:3+:700": the second cudaMalloc
// of the process returns 2, the third peer copy and all later ones return 700. Kernel launches are counted as
// cudaLaunchKernelExC, the function beneath the template cudaLaunchKernelEx.
#include "internal.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace emulation
{

struct Fault {
    std::string function;
    unsigned long call = 0; // from 1
    bool from_then_on = false;
    int code = 0;
    std::atomic<unsigned long> calls{0};
};

static bool parse_fault(const std::string &text, Fault *fault)
{
    size_t first = text.find(':'), second = text.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos)
        return false;
    fault->function = text.substr(0, first);
    char *end;
    std::string call = text.substr(first + 1, second - first - 1), code = text.substr(second + 1);
    fault->call = strtoul(call.c_str(), &end, 10);
    fault->from_then_on = strcmp(end, "+") == 0;
    bool whole_call = *end == 0 || fault->from_then_on;
    fault->code = (int)strtol(code.c_str(), &end, 10);
    return whole_call && *end == 0 && fault->call > 0 && fault->code > 0 && !fault->function.empty();
}

static std::vector<std::unique_ptr<Fault>> *read_faults()
{
    auto *faults = new std::vector<std::unique_ptr<Fault>>;
    const char *text = getenv("DPTRAIN_EMULATED_FAULT");
    for (const char *item = text; item && *item;) {
        size_t length = strcspn(item, ",");
        auto fault = std::make_unique<Fault>();
        if (!parse_fault(std::string(item, length), fault.get()))
            emulation_fail(
                "DPTRAIN_EMULATED_FAULT=%s: expected FUNCTION:CALL:CODE or FUNCTION:CALL+:CODE, with "
                "commas between them",
                text);
        faults->push_back(std::move(fault));
        item += length + (item[length] == ',');
    }
    return faults;
}

// How often each function was called, and how often it failed on purpose: what a test counts through.
struct Calls {
    Mutex mutex;
    std::map<std::string, unsigned long> calls;
    unsigned long faults = 0;
};

static Calls &counted()
{
    static auto *calls = new Calls; // outlives the threads of streams
    return *calls;
}

bool injected_fault(const char *function, int *code)
{
    {
        Guard guard(counted().mutex);
        counted().calls[function]++;
    }
    static const auto *faults = read_faults();
    bool found = false;
    for (const auto &fault : *faults) {
        if (fault->function != function)
            continue;
        unsigned long call = ++fault->calls;
        if (!found && (call == fault->call || (fault->from_then_on && call > fault->call))) {
            *code = fault->code;
            found = true;
        }
    }
    if (found) {
        Guard guard(counted().mutex);
        counted().faults++;
    }
    return found;
}

} // namespace emulation

extern "C" {

unsigned long emulation_faults_injected()
{
    emulation::Guard guard(emulation::counted().mutex);
    return emulation::counted().faults;
}

void emulation_for_each_function(void (*each)(void *user, const char *name, unsigned long calls), void *user)
{
    for (const auto &entry : emulation::counted().calls)
        each(user, entry.first.c_str(), entry.second);
}
}
