#include "core/raw_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>

#include "core/error.h"
#include "core/poison.h"

namespace fusewire {
namespace {

// Mapped pages rather than malloc: a released segment returns to the system at once, whatever the
// heap's thresholds, and large segments can start on a huge page.
class CpuMemory : public RawMemory {
 public:
  Device device() const override { return {}; }
  size_t alignment() const override { return 64; }  // a cache line, one AVX-512 register
  size_t page() const override { return 4096; }

  size_t free_bytes() override {
    const long pages = sysconf(_SC_AVPHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(bytes) : 0;
  }

  void* allocate(size_t bytes) override {
    if (bytes < kHugePage) return map(bytes);
    auto* begin = static_cast<char*>(map(bytes + kHugePage));
    if (!begin) return nullptr;
    size_t skip = round_up(reinterpret_cast<uintptr_t>(begin), kHugePage) -
                  reinterpret_cast<uintptr_t>(begin);
    if (skip) munmap(begin, skip);
    if (skip < kHugePage) munmap(begin + skip + bytes, kHugePage - skip);
#ifdef MADV_HUGEPAGE
    // Weights and arenas are read in long rows, so huge pages save page faults and TLB misses. A
    // kernel without huge pages returns an error, which changes nothing.
    madvise(begin + skip, bytes, MADV_HUGEPAGE);
#endif
    return begin + skip;
  }

  void release(void* data, size_t bytes) noexcept override {
    unpoison({}, data, bytes);
    munmap(data, bytes);
  }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;

  static void* map(size_t bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? nullptr : data;
  }
};

struct Registry {
  std::mutex mutex;
  RawMemoryFactory factories[kDeviceTypeCount] = {
      [](int) -> std::shared_ptr<RawMemory> { return std::make_shared<CpuMemory>(); }};
};

// Never destroyed: blocks may be freed while the process exits.
Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

}  // namespace

void register_raw_memory(DeviceType type, RawMemoryFactory factory) {
  std::lock_guard lock(registry().mutex);
  registry().factories[static_cast<int>(type)] = factory;
}

std::shared_ptr<RawMemory> raw_memory(Device device) {
  std::lock_guard lock(registry().mutex);
  RawMemoryFactory factory = registry().factories[static_cast<int>(device.type)];
  if (!factory) {
    fail("device: got ", device.text(), ", wanted one this build has memory for; use cpu, or a ",
         "build with that device");
  }
  return factory(device.index);
}

}  // namespace fusewire
