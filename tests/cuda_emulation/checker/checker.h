// What the files of the checker share. It is linked in beside the emulation where kernels are compiled with
// EMULATION_CHECKED_CUFLAGS, and hears of each of their loads and stores.
#pragma once

#include "../internal.h"

#include <algorithm>

namespace checker
{

// The CUDA thread that makes an access, as numbers: of the launch in this process, of the block in its grid,
// of the thread in its block.
struct Position {
    uint32_t launch, block, thread;
};

enum class Use : uint8_t { read, write, atomic };

// ---- races.cpp: who touched a piece of memory since the launch began

// One side, reads or writes, of what is known of a piece of memory.
struct Touch {
    uint32_t launch = 0, block = 0; // of the last touch
    uint32_t epoch = 0;             // barriers that its block had passed
    uint32_t time = 0, second_time = 0;
    uint16_t thread = 0, second = 0; // the last thread, and another one since the same barrier
    bool has_second = false;
    // Were all atomic: since the barrier, of the block, of the blocks before it?
    bool atomic = false, block_atomic = false, elsewhere_atomic = false;
    uint32_t elsewhere_launch = 0, elsewhere = 0; // a block before `block` that touched it too
};

struct Cell {
    Touch read, write;
};

struct Race {
    bool found = false, same_block = false, other_wrote = false;
    uint32_t block = 0, thread = 0; // of the other
};

void begin_block(int threads);
void pass_barrier();
void meet_lanes(int warp, unsigned mask);
// Compares the access with what the cell knows, and adds it. In memory shared by a block, other blocks'
// touches are of other memory.
Race touch(Cell *cell, const Position &at, Use use, bool shared);

// ---- coalescing.cpp

// Whether DPTRAIN_EMULATED_COALESCING asks for figures.
bool counts_coalescing();
void note_request(const char *kernel, const void *code, const Position &at, uintptr_t address, size_t bytes,
                  bool write);
// A block has ended: what its lanes did together is known.
void close_requests();
void write_coalescing();

} // namespace checker
