// The environment variables, read once at the first CUDA call. A value that makes no sense ends the process:
// a test with a mistyped setting must not pass.
#include "internal.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulation
{

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : nullptr;
}

// A whole unsigned number up to the end of the text or to `*end` in `stops`.
static bool parse_number(const char **text, const char *stops, uint64_t *out)
{
    if (**text < '0' || **text > '9')
        return false;
    char *end;
    *out = strtoull(*text, &end, 10);
    if (*end && !strchr(stops, *end))
        return false;
    *text = end;
    return true;
}

static uint64_t number_of(const char *name, uint64_t otherwise, uint64_t most)
{
    const char *text = variable(name);
    uint64_t value = otherwise;
    if (!text)
        return value;
    const char *position = text;
    if (!parse_number(&position, "", &value) || value > most)
        emulation_fail("%s=%s: expected a number from 0 to %llu", name, text, (unsigned long long)most);
    return value;
}

// "a,b,c" for GPUs 0, 1, 2; the last value holds for the rest.
template <class T> static void read_list(const char *name, T *values, T otherwise)
{
    const char *text = variable(name);
    uint64_t value = (uint64_t)otherwise;
    const char *position = text;
    for (int gpu = 0; gpu < max_gpus; gpu++) {
        if (position && *position) {
            if (!parse_number(&position, ",", &value) || value == 0 || (T)value <= 0)
                emulation_fail("%s=%s: expected positive numbers with commas between them", name, text);
            if (*position == ',')
                position++;
        }
        values[gpu] = (T)value;
    }
}

static void read_links(Settings *settings)
{
    for (auto &row : settings->link)
        for (Link &link : row)
            link = Link::good;
    const char *text = variable("DPTRAIN_EMULATED_PEER");
    for (const char *item = text; item && *item;) {
        size_t length = strcspn(item, ",");
        std::string word(item, length);
        item += length + (item[length] == ',');

        size_t colon = word.find(':');
        std::string kind = word.substr(0, colon);
        Link link = kind == "hang"      ? Link::hangs
                    : kind == "corrupt" ? Link::corrupts
                    : kind == "fail"    ? Link::fails
                                        : Link::absent;
        int a = -1, b = -1, used = 0;
        bool all = colon == std::string::npos;
        bool pair = !all && sscanf(word.c_str() + colon + 1, "%d-%d%n", &a, &b, &used) == 2 &&
                    colon + 1 + (size_t)used == word.size() && a >= 0 && b >= 0 && a < max_gpus &&
                    b < max_gpus;
        if ((kind != "hang" && kind != "corrupt" && kind != "fail" && kind != "none") || (!all && !pair))
            emulation_fail(
                "DPTRAIN_EMULATED_PEER=%s: expected hang:A-B, corrupt:A-B, fail:A-B, none:A-B or each "
                "without a pair for all of them",
                text);
        for (int i = 0; i < max_gpus; i++)
            for (int j = 0; j < max_gpus; j++)
                if (all || (i == a && j == b) || (i == b && j == a))
                    settings->link[i][j] = link;
    }
}

cudaUUID_t uuid_bytes(int physical)
{
    cudaUUID_t uuid;
    uint64_t state = 0x6470747261696eull + (uint64_t)physical;
    for (char &byte : uuid.bytes)
        byte = (char)next_random(&state);
    return uuid;
}

std::string uuid_text(int physical)
{
    cudaUUID_t uuid = uuid_bytes(physical);
    std::string text = "GPU-";
    for (int i = 0; i < 16; i++) {
        char hex[4];
        snprintf(hex, sizeof hex, "%02x", (unsigned char)uuid.bytes[i]);
        text += hex;
        if (i == 3 || i == 5 || i == 7 || i == 9)
            text += '-';
    }
    return text;
}

// The GPU that a word of CUDA_VISIBLE_DEVICES names (a number, or the beginning of one UUID), or -1.
static int named_gpu(const std::string &word, int gpus)
{
    if (word.rfind("GPU-", 0) == 0) {
        int found = -1;
        for (int gpu = 0; gpu < gpus; gpu++)
            if (uuid_text(gpu).rfind(word, 0) == 0) {
                if (found >= 0)
                    return -1;
                found = gpu;
            }
        return found;
    }
    const char *position = word.c_str();
    uint64_t number;
    return parse_number(&position, "", &number) && number < (uint64_t)gpus ? (int)number : -1;
}

// The list ends at the first word that names no GPU or one that was named before.
static void read_visible(Settings *settings)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (int gpu = 0; gpu < settings->gpus; gpu++)
            settings->visible.push_back(gpu);
        return;
    }
    for (const char *item = text; *item;) {
        size_t length = strcspn(item, ",");
        std::string word(item, length);
        item += length + (item[length] == ',');
        word.erase(0, word.find_first_not_of(' '));
        word.erase(word.find_last_not_of(' ') + 1);
        int gpu = named_gpu(word, settings->gpus);
        for (int earlier : settings->visible)
            if (earlier == gpu)
                gpu = -1;
        if (gpu < 0)
            return;
        settings->visible.push_back(gpu);
    }
}

static Settings *read_settings()
{
    auto *settings = new Settings;
    settings->gpus = (int)number_of("DPTRAIN_EMULATED_GPUS", 0, max_gpus);
    read_list<uint64_t>("DPTRAIN_EMULATED_MEMORY", settings->memory, 4ull << 30);
    read_list<int>("DPTRAIN_EMULATED_SMS", settings->multiprocessors, 8);
    read_links(settings);
    read_visible(settings);
    settings->seed = number_of("DPTRAIN_EMULATED_SEED", 0, UINT64_MAX);
    settings->max_delay_us = number_of("DPTRAIN_EMULATED_DELAY_US", 0, 1000000);
    const char *report = variable("DPTRAIN_EMULATED_REPORT");
    settings->report_path = report ? report : "";
    const char *waits = variable("DPTRAIN_EMULATED_WAITS");
    settings->waits_path = waits ? waits : "";
    for (const char *place = variable("DPTRAIN_EMULATED_SKIP_WAIT"); place && *place;) {
        size_t length = strcspn(place, ",");
        settings->skipped_waits.emplace(place, length);
        place += length + (place[length] == ',');
    }
    return settings;
}

const Settings &settings()
{
    static const Settings *instance = read_settings();
    return *instance;
}

uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

} // namespace emulation
