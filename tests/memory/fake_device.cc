#include "fake_device.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "core/error.h"
#include "core/torch_allocator.h"

using namespace fusewire;

namespace {

struct FakeStream {
  uint64_t submitted = 0;
  uint64_t finished = 0;
  bool capturing = false;
};
using FakeStreamPointer = std::shared_ptr<FakeStream>;

struct Range {
  uint64_t begin, end;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

struct Use {
  Range range;
  FakeStreamPointer stream;
  uint64_t position;
  bool unfinished() const { return position > stream->finished; }
};

struct Mark {
  FakeStreamPointer stream;
  uint64_t position;
};

// What the driver knows.
struct Driver {
  size_t capacity = 0;
  uint64_t given = 0;
  uint64_t next_address = uint64_t{1} << 32;
  std::map<uint64_t, size_t> segments;
  std::vector<FakeStreamPointer> streams;  // null: destroyed
  std::vector<Use> uses;
  std::map<int64_t, Range> live;
  int64_t marks = 0;
  std::string problem;

  void complain(const std::string& text) {
    if (problem.empty()) problem = text;
  }
  FakeStream* find(const Stream& stream) {
    size_t index = reinterpret_cast<uintptr_t>(stream.handle) - 1;
    return index < streams.size() ? streams[index].get() : nullptr;
  }
  // Nothing that others than `allowed` still do, and no live block, meets the range.
  void check_unused(const Range& range, const FakeStream* allowed, const std::string& event) {
    for (const Use& use : uses) {
      if (use.stream.get() != allowed && use.unfinished() && use.range.meets(range)) {
        complain(event + " memory that unfinished work uses");
      }
    }
    for (const auto& [id, other] : live) {
      if (other.meets(range)) complain(event + " memory of a live block");
    }
  }
};

class FakeMemory : public RawMemory {
 public:
  explicit FakeMemory(std::shared_ptr<Driver> driver) : driver_(std::move(driver)) {}

  Device device() const override { return {DeviceType::kCuda, 0}; }
  size_t alignment() const override { return 512; }
  size_t page() const override { return size_t{2} << 20; }

  void* allocate(size_t bytes) override {
    if (bytes > driver_->capacity - driver_->given) return nullptr;
    driver_->given += bytes;
    uint64_t address = driver_->next_address;
    driver_->next_address += bytes + page();
    driver_->segments[address] = bytes;
    return reinterpret_cast<void*>(address);
  }

  void release(void* data, size_t bytes) noexcept override {
    auto address = reinterpret_cast<uint64_t>(data);
    auto found = driver_->segments.find(address);
    if (found == driver_->segments.end() || found->second != bytes) {
      return driver_->complain("release of something else than a segment");
    }
    driver_->check_unused({address, address + bytes}, nullptr, "release of");
    driver_->segments.erase(found);
    driver_->given -= bytes;
  }

  Progress set_mark(const Stream& stream, void** mark) noexcept override {
    FakeStream* found = driver_->find(stream);
    if (!found) {
      driver_->complain("a mark on a stream that does not exist");
      return Progress::kUnknown;
    }
    if (found->capturing) return Progress::kUnknown;
    if (found->finished == found->submitted) return Progress::kDone;
    size_t index = reinterpret_cast<uintptr_t>(stream.handle) - 1;
    *mark = new Mark{driver_->streams[index], found->submitted};
    ++driver_->marks;
    return Progress::kPending;
  }

  bool passed(void* mark) noexcept override {
    auto* point = static_cast<Mark*>(mark);
    return point->stream->finished >= point->position;
  }

  bool wait(void* mark) noexcept override {
    auto* point = static_cast<Mark*>(mark);
    point->stream->finished = std::max(point->stream->finished, point->position);
    return true;
  }

  void drop(void* mark) noexcept override {
    delete static_cast<Mark*>(mark);
    --driver_->marks;
  }

  bool finish() noexcept override {
    for (const auto& stream : driver_->streams) {
      if (stream && stream->capturing) return false;
    }
    for (Use& use : driver_->uses) use.stream->finished = use.stream->submitted;
    return true;
  }

 private:
  std::shared_ptr<Driver> driver_;
};

struct Live {
  std::shared_ptr<void> block;
  int stream;
  FakeStreamPointer owner;
};

}  // namespace

struct FakeDevice {
  std::shared_ptr<Driver> driver;
  std::shared_ptr<RawMemory> memory;
  std::unique_ptr<CachingAllocator> allocator;
  std::map<int64_t, Live> blocks;
  int64_t next_block = 0;
};

namespace {

Stream stream_of(int stream) {
  return {{DeviceType::kCuda, 0}, reinterpret_cast<void*>(static_cast<uintptr_t>(stream) + 1)};
}

std::shared_ptr<RawMemory>& default_memory() {
  static std::shared_ptr<RawMemory> memory;
  return memory;
}

void write_stats(const CachingAllocator& allocator, uint64_t* stats) {
  AllocatorStats s = allocator.stats();
  const uint64_t values[kFakeStats] = {s.allocated_bytes,
                                       s.reserved_bytes,
                                       s.live_blocks,
                                       s.segments,
                                       s.raw_allocations,
                                       s.raw_releases,
                                       s.segments_adopted,
                                       s.blocks_lent,
                                       s.stream_waits,
                                       s.waiting_blocks,
                                       s.waiting_bytes,
                                       0,
                                       0};
  std::copy(values, values + kFakeStats, stats);
}

}  // namespace

FakeDevice* fake_open(size_t capacity, size_t cap) {
  auto* device = new FakeDevice;
  device->driver = std::make_shared<Driver>();
  device->driver->capacity = capacity;
  device->memory = std::make_shared<FakeMemory>(device->driver);
  device->allocator = std::make_unique<CachingAllocator>(device->memory, cap);
  return device;
}

bool fake_close(FakeDevice* device) {
  for (auto& stream : device->driver->streams) {
    if (stream) stream->capturing = false;
  }
  while (!device->blocks.empty()) fake_free(device, device->blocks.begin()->first);
  device->allocator.reset();
  Driver& driver = *device->driver;
  bool clean = driver.problem.empty() && !driver.given && !driver.marks;
  delete device;
  return clean;
}

int fake_create_stream(FakeDevice* device) {
  auto& streams = device->driver->streams;
  size_t index = 0;
  while (index < streams.size() && streams[index]) ++index;
  if (index == streams.size()) streams.emplace_back();
  streams[index] = std::make_shared<FakeStream>();
  return static_cast<int>(index);
}

void fake_destroy_stream(FakeDevice* device, int stream) {
  device->allocator->forget(stream_of(stream));
  device->driver->streams[static_cast<size_t>(stream)] = nullptr;
}

void fake_set_capturing(FakeDevice* device, int stream, bool capturing) {
  device->driver->streams[static_cast<size_t>(stream)]->capturing = capturing;
}

void fake_advance(FakeDevice* device, int stream, uint64_t steps) {
  FakeStream& state = *device->driver->streams[static_cast<size_t>(stream)];
  state.finished = std::min(state.submitted, state.finished + steps);
}

uint64_t fake_unfinished(FakeDevice* device) {
  uint64_t count = 0;
  for (const Use& use : device->driver->uses) count += use.unfinished();
  return count;
}

int64_t fake_allocate(FakeDevice* device, int stream, size_t bytes, bool cached) {
  Driver& driver = *device->driver;
  std::shared_ptr<void> block;
  try {
    block = cached ? device->allocator->allocate(bytes, "fake", stream_of(stream))
                   : device->allocator->allocate_uncached(bytes, "fake", stream_of(stream));
  } catch (const Error&) {
    return -1;
  }
  auto begin = reinterpret_cast<uint64_t>(block.get());
  Range range{begin, begin + std::max<size_t>(bytes, 1)};
  FakeStreamPointer owner = driver.streams[static_cast<size_t>(stream)];
  driver.check_unused(range, owner.get(), "reuse of");
  auto segment = driver.segments.upper_bound(begin);
  if (begin % 512 || segment == driver.segments.begin() ||
      range.end > std::prev(segment)->first + std::prev(segment)->second) {
    driver.complain("a block outside the device's memory");
  }
  int64_t id = device->next_block++;
  driver.live[id] = range;
  device->blocks[id] = {std::move(block), stream, std::move(owner)};
  return id;
}

void fake_use(FakeDevice* device, int64_t block, int stream) {
  Driver& driver = *device->driver;
  const Live& live = device->blocks.at(block);
  FakeStreamPointer user = driver.streams[static_cast<size_t>(stream)];
  if (user != live.owner) device->allocator->used_by(live.block, stream_of(stream));
  if (user->capturing) return;  // recorded, not done
  driver.uses.push_back({driver.live.at(block), user, ++user->submitted});
  if (driver.uses.size() > 512) {  // only what is unfinished is of interest
    std::vector<Use> unfinished;
    for (Use& use : driver.uses) {
      if (use.unfinished()) unfinished.push_back(std::move(use));
    }
    driver.uses = std::move(unfinished);
  }
}

void fake_free(FakeDevice* device, int64_t block) {
  device->driver->live.erase(block);
  device->blocks.erase(block);
}

uint64_t fake_address(FakeDevice* device, int64_t block) {
  return device->driver->live.at(block).begin;
}

size_t fake_trim(FakeDevice* device) {
  return device->allocator->trim();
}

void fake_stats(FakeDevice* device, uint64_t* stats) {
  write_stats(*device->allocator, stats);
  stats[11] = device->driver->given;
  stats[12] = static_cast<uint64_t>(device->driver->marks);
}

const char* fake_problem(FakeDevice* device) {
  return device->driver->problem.c_str();
}

void fake_become_default(FakeDevice* device) {
  default_memory() = device->memory;
  register_raw_memory(DeviceType::kCuda,
                      [](int) -> std::shared_ptr<RawMemory> { return default_memory(); });
}

void fake_torch_begin_pool(uint64_t pool, int stream) {
  auto* handle = static_cast<CUstream_st*>(stream_of(stream).handle);
  fusewire_torch_begin_pool(0, {pool, 0}, [handle](CUstream_st* s) { return s == handle; });
}

void fake_torch_end_pool(uint64_t pool) {
  fusewire_torch_end_pool(0, {pool, 0});
}

void fake_torch_release_pool(uint64_t pool) {
  fusewire_torch_release_pool(0, {pool, 0});
}

void fake_default_stats(uint64_t* stats) {
  CachingAllocator& allocator = default_allocator({DeviceType::kCuda, 0});
  write_stats(allocator, stats);
  for (const HolderStats& holder : allocator.holders()) {
    if (holder.tag == "torch") stats[12] = holder.bytes;
  }
}
