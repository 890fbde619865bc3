// The free memory of one stream, and the stream's progress.
//
// Points number the moments at which memory was freed or last used by the stream. The stream itself
// reuses what it freed without waiting, because its work runs in order; other streams may use it
// once this stream has passed the point. A mark is set on the device only on demand, so a free
// costs an increment, and a stream has at most one outstanding mark.
#pragma once

#include <cstdint>

#include "core/free_lists.h"
#include "core/raw_memory.h"

namespace fusewire {

class StreamMemory {
 public:
  StreamMemory(RawMemory& raw, const Stream& stream)
      : small(raw.alignment()), large(raw.alignment()), raw_(raw), stream_(stream) {}
  ~StreamMemory() { drop_mark(); }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  bool belongs_to(const Stream& stream) const { return stream_.handle == stream.handle; }

  uint64_t new_point() { return ++points_; }
  bool passed(uint64_t point) const { return point <= passed_; }
  uint64_t last_passed() const { return passed_; }

  // Queries the device; returns true if every point so far is passed.
  bool poll() noexcept;
  // Waits until they are; returns false if the device cannot tell.
  bool wait() noexcept;

  // To be called before the stream is destroyed: no more work follows. The memory stays for other
  // streams, and for the next new stream. Error while the stream is being captured.
  void retire();
  // Returns whether its stream was destroyed and all of its work has finished.
  bool orphaned() noexcept { return retired_ && (poll(), passed(kEveryPoint)); }
  // Gives the memory of a destroyed stream to a new one. Only if it is orphaned.
  void revive(const Stream& stream);

  FreeLists small;
  FreeLists large;

 private:
  static constexpr uint64_t kEveryPoint = ~uint64_t{0};

  void drop_mark() noexcept;

  RawMemory& raw_;
  Stream stream_;
  uint64_t points_ = 0;
  uint64_t passed_ = 0;
  void* mark_ = nullptr;
  uint64_t marked_ = 0;  // the last point before the mark
  bool retired_ = false;
};

}  // namespace fusewire
