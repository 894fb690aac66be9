// Counts the 32-byte sectors that the lanes of a warp touch together, as a GPU's memory system serves them.
//
// A request is what the lanes of a warp do at one place of the code for the n-th time each. That is how they
// run on a GPU too as long as they go through loops together. Of each launch the first blocks are counted.
#include "checker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <unordered_map>

namespace checker
{

static const uint32_t counted_blocks = 32;
static const uintptr_t sector = 32;

struct Lane {
    uintptr_t address;
    size_t bytes;
};

// A load or store in the code.
struct Site {
    const char *kernel;
    bool write;
    size_t bytes = 0; // of an element
    uint64_t requests = 0, sectors = 0, ideal = 0;
    std::vector<uint32_t> times;                               // by thread, in this block
    std::unordered_map<uint64_t, std::vector<Lane>> requested; // by warp and time, in this block
};

struct Place {
    const char *kernel;
    const void *code;
    size_t bytes; // of the element: words of a structure and single words are told apart
    bool operator<(const Place &other) const
    {
        return std::tie(kernel, code, bytes) < std::tie(other.kernel, other.code, other.bytes);
    }
};

static std::map<Place, Site> *sites;

bool counts_coalescing()
{
    static const char *path = getenv("DPTRAIN_EMULATED_COALESCING");
    return path && *path;
}

void note_request(const char *kernel, const void *code, const Position &at, uintptr_t address, size_t bytes,
                  bool write)
{
    if (!counts_coalescing() || at.block >= counted_blocks)
        return;
    if (!sites) {
        sites = new std::map<Place, Site>;
        atexit(write_coalescing);
    }
    Site &site = (*sites)[{kernel, code, bytes}];
    site.kernel = kernel;
    site.write = write;
    site.bytes = bytes;
    if (site.times.size() <= at.thread)
        site.times.resize(1024);
    site.requested[(uint64_t)(at.thread / 32) << 32 | site.times[at.thread]++].push_back({address, bytes});
}

// How many pieces of `size` bytes the lanes touch.
static size_t distinct(const std::vector<Lane> &lanes, uintptr_t size)
{
    std::vector<uintptr_t> pieces;
    for (const Lane &lane : lanes)
        for (uintptr_t piece = lane.address / size; piece <= (lane.address + lane.bytes - 1) / size; piece++)
            pieces.push_back(piece);
    std::sort(pieces.begin(), pieces.end());
    return (size_t)(std::unique(pieces.begin(), pieces.end()) - pieces.begin());
}

void close_requests()
{
    if (!sites)
        return;
    for (auto &[place, site] : *sites) {
        if (site.requested.empty())
            continue;
        for (const auto &[when, lanes] : site.requested) {
            site.requests++;
            site.sectors += distinct(lanes, sector);
            // Lanes that share an element are served together.
            site.ideal += (distinct(lanes, site.bytes) * site.bytes + sector - 1) / sector;
        }
        site.requested.clear();
        std::fill(site.times.begin(), site.times.end(), 0);
    }
}

// A line for each place: kernel, file of the code, offset in it, "load" or "store", bytes of an element,
// requests, sectors, ideal sectors; tabs between. Appended, as several processes may share the file.
void write_coalescing()
{
    const char *path = getenv("DPTRAIN_EMULATED_COALESCING");
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0)
        emulation_fail("cannot write DPTRAIN_EMULATED_COALESCING=%s", path);
    for (const auto &[place, site] : *sites) {
        Dl_info info;
        if (!dladdr(place.code, &info))
            continue;
        char line[1024];
        int length =
            snprintf(line, sizeof line, "%s\t%s\t0x%zx\t%s\t%zu\t%llu\t%llu\t%llu\n", site.kernel,
                     info.dli_fname, (size_t)((const char *)place.code - (const char *)info.dli_fbase) - 1,
                     site.write ? "store" : "load", site.bytes, (unsigned long long)site.requests,
                     (unsigned long long)site.sectors, (unsigned long long)site.ideal);
        if (write(file, line, (size_t)length) != length)
            emulation_fail("cannot write DPTRAIN_EMULATED_COALESCING=%s", path);
    }
    close(file);
}

} // namespace checker
