// Random work on the memory library, meant for a build with sanitizers (test_sanitizers.py):
// free blocks, released scratch tensors and paddings are poisoned there, so a block that overlaps
// another, or a use after a free, ends the program. `stress misuse NAME` does one wrong thing on
// purpose, to show that it does.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/allocator.h"
#include "core/error.h"
#include "core/workspace.h"
#include "fake_device.h"

using namespace fusewire;

namespace {

constexpr int kThreads = 4;
constexpr int kSteps = 8000;
constexpr size_t kMiB = size_t{1} << 20;

#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (0)

struct Held {
  std::shared_ptr<void> block;
  size_t bytes;
  unsigned char pattern;

  void fill() const { std::memset(block.get(), pattern, bytes); }
  void check() const {
    auto* data = static_cast<unsigned char*>(block.get());
    size_t step = bytes / 64 + 1;
    for (size_t i = 0; i < bytes; i += step) EXPECT(data[i] == pattern);
    if (bytes) EXPECT(data[bytes - 1] == pattern);
  }
};

size_t random_size(std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      return random() % (3 * kMiB);
    case 1:
      return 256 * 1024 + random() % 128;
    default:
      return random() % 20000;
  }
}

// Each thread keeps a few blocks, takes and frees at random, and hands some to its neighbour.
void churn(CachingAllocator& allocator, unsigned seed, std::vector<Held>& leftover) {
  std::mt19937 random(seed);
  Stream stream;
  stream.handle = seed % 2 ? nullptr : &allocator;  // two streams share the device
  std::vector<Held> held;
  for (int step = 0; step < kSteps; ++step) {
    unsigned choice = random() % 100;
    if (choice == 0) {
      allocator.trim();
    } else if (choice == 1) {
      (void)allocator.stats();
    } else if (held.size() > 24 || (choice < 48 && !held.empty())) {
      size_t which = random() % held.size();
      held[which].check();
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      size_t bytes = random_size(random);
      try {
        bool cached = choice < 97;
        auto block = cached ? allocator.allocate(bytes, "churn", stream)
                            : allocator.allocate_uncached(bytes, "uncached", stream);
        held.push_back({std::move(block), bytes, static_cast<unsigned char>(random())});
        held.back().fill();
      } catch (const Error&) {
        held.clear();  // the cap; another thread may be at it too
      }
    }
  }
  for (Held& each : held) each.check();
  leftover = std::move(held);  // freed by the main thread
}

void allocator_survives_threads() {
  std::vector<std::vector<Held>> leftovers(kThreads);
  auto allocator = std::make_unique<CachingAllocator>(raw_memory({}), 48 * kMiB);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { churn(*allocator, i + 1, leftovers[i]); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT(allocator->stats().peak_reserved_bytes <= 48 * kMiB);
  Held outlives = {allocator->allocate(1000, "late"), 1000, 7};
  outlives.fill();
  leftovers.clear();
  AllocatorStats stats = allocator->stats();
  EXPECT(stats.live_blocks == 1 && stats.cache_hits > kSteps);
  allocator->trim();
  EXPECT(allocator->stats().segments == 1);
  allocator.reset();
  outlives.check();
}

// One random program of scratch tensors, the same whenever the seed is the same.
void scratch_program(Scratch& scratch, unsigned seed, unsigned tokens) {
  std::mt19937 random(seed);
  struct Open {
    ScratchTensor tensor;
    unsigned char pattern;
  };
  std::vector<Open> open;
  for (int step = 0; step < 24; ++step) {
    if (open.size() > 6 || (random() % 2 && !open.empty())) {
      size_t which = random() % open.size();
      if (!scratch.recording()) {
        auto* data = open[which].tensor->as<unsigned char>();
        for (size_t i = 0; i < open[which].tensor->bytes(); i += 97) {
          EXPECT(data[i] == open[which].pattern);
        }
      }
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      int64_t width = random() % 90;
      auto pattern = static_cast<unsigned char>(random());
      open.push_back({scratch.tensor({tokens, width}), pattern});
      const Tensor& tensor = open.back().tensor;
      EXPECT(scratch.recording() == (tensor.data == nullptr));
      if (tensor.data) std::memset(tensor.data, pattern, tensor.bytes());
    }
  }
  while (!open.empty()) open.pop_back();
}

void workspaces_survive_threads() {
  CachingAllocator allocator(raw_memory({}));
  {
    static const char kKind = 0;
    Workspace shared(allocator, /*shrink_after=*/20, /*max_plans=*/16);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        Workspace own(allocator, /*shrink_after=*/8, /*max_plans=*/4);
        std::mt19937 random(i);
        for (int run = 0; run < 300; ++run) {
          unsigned seed = random() % 8, tokens = random() % 700;
          tokens = run % 100 < 20 ? tokens * 8 : tokens;  // bursts, so that arenas shrink again
          for (Workspace* workspace : {&own, &shared}) {
            workspace->run({&kKind, seed, tokens}, {}, [&](Scratch& scratch, const Stream&) {
              scratch_program(scratch, seed, tokens);
            });
          }
        }
        EXPECT(own.stats().growths > 1 && own.stats().shrinks > 0);
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT(shared.stats().runs == kThreads * 300);
  }
  allocator.trim();
  AllocatorStats stats = allocator.stats();
  EXPECT(stats.allocated_bytes == 0 && stats.reserved_bytes == 0 && stats.live_blocks == 0);
}

// The same on several streams of a device whose work takes its time.
void streams_survive_random_work() {
  std::mt19937 random(1);
  for (size_t cap : {size_t{0}, 24 * kMiB}) {
    FakeDevice* device = fake_open(256 * kMiB, cap);
    std::vector<int> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(fake_create_stream(device));
    std::vector<int64_t> blocks;
    for (int step = 0; step < 6 * kSteps; ++step) {
      unsigned choice = random() % 100;
      int& stream = streams[random() % streams.size()];
      if (choice == 0) {
        fake_destroy_stream(device, stream);
        stream = fake_create_stream(device);
      } else if (choice < 3) {
        fake_trim(device);
      } else if (choice < 20) {
        fake_advance(device, stream, random() % 8);
      } else if (choice < 30 && !blocks.empty()) {
        fake_use(device, blocks[random() % blocks.size()], stream);
      } else if (blocks.size() > 40 || (choice < 65 && !blocks.empty())) {
        size_t which = random() % blocks.size();
        fake_free(device, blocks[which]);
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        int64_t block = fake_allocate(device, stream, random_size(random), choice < 98);
        EXPECT(cap || block >= 0);
        if (block < 0) continue;
        blocks.push_back(block);
        fake_use(device, block, stream);
      }
      EXPECT(!*fake_problem(device));
    }
    uint64_t stats[kFakeStats];
    fake_stats(device, stats);
    EXPECT(stats[6] > 0 && stats[8] > 0);  // segments adopted, stream waits
    EXPECT(!cap || stats[7] > 0);          // blocks lent
    EXPECT(fake_close(device));
  }
}

void the_end_of_a_stream_reaches_every_allocator() {
  FakeDevice* devices[] = {fake_open(64 * kMiB, 0), fake_open(64 * kMiB, 0)};
  uint64_t addresses[2];
  for (int i = 0; i < 2; ++i) {
    int64_t block = fake_allocate(devices[i], fake_create_stream(devices[i]), kMiB, true);
    fake_use(devices[i], block, 0);
    addresses[i] = fake_address(devices[i], block);
    fake_free(devices[i], block);
  }
  Stream first{{DeviceType::kCuda, 0}, reinterpret_cast<void*>(1)};
  forget_stream(first);
  for (int i = 0; i < 2; ++i) {
    int64_t block = fake_allocate(devices[i], 0, kMiB, true);  // as a new stream at that address
    EXPECT(fake_address(devices[i], block) != addresses[i]);
    EXPECT(fake_close(devices[i]));
  }
}

void misuse(const std::string& name) {
  CachingAllocator allocator(raw_memory({}));
  Workspace workspace(allocator);
  auto block = allocator.allocate(100, "block");
  auto* data = static_cast<volatile char*>(block.get());
  if (name == "use_after_free") {
    block.reset();
    data[0] = 1;
  } else if (name == "overflow") {
    data[100] = 1;
  } else if (name == "scratch_overflow") {
    workspace.run({}, {}, [](Scratch& scratch, const Stream& stream) {
      ScratchTensor tensor = scratch.tensor({5}, DType::kFloat32);
      if (!stream.recording) tensor->as<volatile char>()[20] = 1;
    });
  } else if (name == "scratch_use_after_release") {
    workspace.run({}, {}, [](Scratch& scratch, const Stream& stream) {
      ScratchTensor tensor = scratch.tensor({64}, DType::kFloat32);
      volatile char* memory = tensor->as<volatile char>();
      tensor.release();
      if (!stream.recording) memory[0] = 1;
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    misuse(argv[2]);
    return 0;
  }
  allocator_survives_threads();
  workspaces_survive_threads();
  streams_survive_random_work();
  the_end_of_a_stream_reaches_every_allocator();
  std::puts("ok");
}
