// What is free for one stream, and how far that stream has come.
//
// Points number the moments at which memory was freed or last used by the stream. The stream itself
// reuses what it freed without waiting, because its work runs in order; others may have it once the
// stream has passed the point. A mark on the device is set only when somebody asks, so a free costs
// an increment, and at most one mark a stream is out.
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

  // Asks the device; true when every point so far is passed.
  bool poll() noexcept;
  // Waits until they are; false when the device cannot tell.
  bool wait() noexcept;

  // The stream is about to end: no point follows what it was given until now. The memory stays for
  // others, and for the next new stream. Error while the stream is being captured.
  void retire();
  // Whether its stream has ended and all of its work is finished.
  bool orphaned() noexcept { return retired_ && (poll(), passed(kEveryPoint)); }
  // Gives the memory of a stream that has ended to a new one. Only when orphaned.
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
