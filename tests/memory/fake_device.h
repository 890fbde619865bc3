// A GPU's memory and streams in so far as an allocator sees them: addresses without memory behind
// them, work that is finished when the test says so. Everything that the allocator hands out or
// returns is checked against the work that is not finished; what is wrong ends up in `problem`.
// A C interface, so that test_streams.py drives the same as stress.cc.
#pragma once

#include <cstddef>
#include <cstdint>

struct FakeDevice;

extern "C" {

// `capacity` is what the device has, `cap` what the allocator may take of it (0: all).
FakeDevice* fake_open(size_t capacity, size_t cap);
// Ends the allocator. True if nothing of the device is left in use.
bool fake_close(FakeDevice* device);

// Streams are small numbers, which new streams use again. Destroying does not wait for the work.
int fake_create_stream(FakeDevice* device);
void fake_destroy_stream(FakeDevice* device, int stream);
void fake_set_capturing(FakeDevice* device, int stream, bool capturing);
void fake_advance(FakeDevice* device, int stream, uint64_t steps);  // finishes so much of its work
uint64_t fake_unfinished(FakeDevice* device);

// A block's number, or -1 when out of memory.
int64_t fake_allocate(FakeDevice* device, int stream, size_t bytes, bool cached);
void fake_use(FakeDevice* device, int64_t block, int stream);  // gives the stream work on it
void fake_free(FakeDevice* device, int64_t block);
uint64_t fake_address(FakeDevice* device, int64_t block);
size_t fake_trim(FakeDevice* device);

// allocated, reserved, live blocks, segments, raw allocations, raw releases, segments adopted,
// blocks lent, stream waits, waiting blocks, waiting bytes, bytes the device gave, marks that are
// out
constexpr int kFakeStats = 13;
void fake_stats(FakeDevice* device, uint64_t* stats);
const char* fake_problem(FakeDevice* device);  // "" when there is none

// The device behind default_allocator({kCuda, 0}), once a process: for torch's functions.
void fake_become_default(FakeDevice* device);
// fusewire_torch_begin_pool for the streams of which this is one.
void fake_torch_begin_pool(uint64_t pool, int stream);
void fake_torch_end_pool(uint64_t pool);
void fake_torch_release_pool(uint64_t pool);
void fake_default_stats(uint64_t* stats);  // as fake_stats; "torch" bytes in place of the last
}
