// Races between threads of a grid: two touch a byte, one of them writes, and nothing orders them.
//
// Blocks are ordered by nothing. Threads of a block are ordered by its barriers, and lanes of a warp by
// __syncwarp also: for these each lane has a clock and knows those of the others as of their last meeting
// (vector clocks; Lamport: "Time, clocks, and the ordering of events in a distributed system", 1978).
// Shuffles and votes do not order memory (CUDA C++ Programming Guide, "Warp Shuffle Functions").
//
// What is compared is the order that the barriers give, never the order in which the emulation ran, so one
// run shows a race whichever thread came first.
#include "checker.h"

#include <array>

namespace checker
{

static uint32_t epoch;
using Known = std::array<std::array<uint32_t, 32>, 32>; // [lane][of lane]
static std::vector<Known> clocks;                       // by warp, of blocks with a __syncwarp
static bool met;

void begin_block(int threads)
{
    epoch = 0;
    met = false;
    clocks.resize((size_t)(threads + 31) / 32);
}

void pass_barrier()
{
    epoch++;
}

static void start_clocks()
{
    for (Known &known : clocks) {
        known = {};
        for (size_t lane = 0; lane < 32; lane++)
            known[lane][lane] = 1;
    }
    met = true;
}

void meet_lanes(int warp, unsigned mask)
{
    if (!met)
        start_clocks();
    Known &known = clocks[(size_t)warp];
    std::array<uint32_t, 32> all = {};
    for (size_t lane = 0; lane < 32; lane++)
        if (mask >> lane & 1)
            for (size_t other = 0; other < 32; other++)
                all[other] = std::max(all[other], known[lane][other]);
    for (size_t lane = 0; lane < 32; lane++)
        if (mask >> lane & 1) {
            known[lane] = all;
            known[lane][lane]++;
        }
}

static uint32_t time_of(uint32_t thread)
{
    return met ? clocks[thread / 32][thread % 32][thread % 32] : 1;
}

// Is what `thread` of the current block did at `time`, since the last barrier, before what `now` does?
static bool ordered(uint32_t thread, uint32_t time, uint32_t now)
{
    return thread == now ||
           (met && thread / 32 == now / 32 && clocks[now / 32][now % 32][thread % 32] >= time);
}

static Race conflict(const Touch &known, const Position &at, Use use, bool shared)
{
    bool atomic = use == Use::atomic;
    Race race;
    if (known.launch == at.launch && known.block == at.block && known.epoch == epoch &&
        !(atomic && known.atomic)) {
        race.found = race.same_block = true;
        race.block = at.block;
        race.thread = known.thread;
        if (!ordered(known.thread, known.time, at.thread))
            return race;
        race.thread = known.second;
        if (known.has_second && !ordered(known.second, known.second_time, at.thread))
            return race;
    }
    race = {};
    if (shared)
        return race;
    if (known.launch == at.launch && known.block != at.block && !(atomic && known.block_atomic)) {
        race.found = true;
        race.block = known.block;
    } else if (known.elsewhere_launch == at.launch && known.elsewhere != at.block &&
               !(atomic && known.elsewhere_atomic)) {
        race.found = true;
        race.block = known.elsewhere;
    }
    return race;
}

static void add(Touch *known, const Position &at, bool atomic)
{
    const bool same_launch = known->launch == at.launch;
    const bool same_block = same_launch && known->block == at.block,
               same_epoch = same_block && known->epoch == epoch;
    if (same_launch && !same_block) {
        const bool more = known->elsewhere_launch == at.launch;
        known->elsewhere_atomic = known->block_atomic && (!more || known->elsewhere_atomic);
        known->elsewhere_launch = at.launch;
        known->elsewhere = known->block;
    }
    known->atomic = atomic && (!same_epoch || known->atomic);
    known->block_atomic = atomic && (!same_block || known->block_atomic);
    if (!same_epoch) {
        known->has_second = false;
    } else if (known->thread != at.thread) {
        known->second = known->thread;
        known->second_time = known->time;
        known->has_second = true;
    }
    known->launch = at.launch;
    known->block = at.block;
    known->epoch = epoch;
    known->thread = (uint16_t)at.thread;
    known->time = time_of(at.thread);
}

Race touch(Cell *cell, const Position &at, Use use, bool shared)
{
    Race race = conflict(cell->write, at, use, shared);
    race.other_wrote = race.found;
    if (!race.found && use != Use::read)
        race = conflict(cell->read, at, use, shared);
    if (use == Use::read)
        add(&cell->read, at, false);
    else
        add(&cell->write, at, use == Use::atomic);
    return race;
}

} // namespace checker
