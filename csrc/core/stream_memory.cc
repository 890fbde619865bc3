#include "core/stream_memory.h"

#include "core/error.h"

namespace fusewire {

bool StreamMemory::poll() noexcept {
  if (mark_ && raw_.passed(mark_)) {
    passed_ = marked_;
    drop_mark();
  }
  if (passed_ >= points_) return true;
  if (mark_) return false;
  if (raw_.set_mark(stream_, &mark_) != Progress::kDone) {
    marked_ = points_;  // unused if there is no mark
    return false;
  }
  passed_ = points_;
  return true;
}

bool StreamMemory::wait() noexcept {
  while (!poll()) {
    if (!mark_ || !raw_.wait(mark_)) return false;
  }
  return true;
}

void StreamMemory::retire() {
  drop_mark();
  switch (raw_.set_mark(stream_, &mark_)) {
    case Progress::kDone:
      passed_ = kEveryPoint;
      break;
    case Progress::kPending:
      marked_ = kEveryPoint;
      break;
    case Progress::kUnknown:
      fail("stream: got the end of a stream that is being captured, wanted one at rest; end the ",
           "capture first");
  }
  retired_ = true;
  stream_.handle = this;  // matches no stream: a new stream may get the old handle
}

void StreamMemory::revive(const Stream& stream) {
  passed_ = points_;
  stream_ = stream;
  retired_ = false;
}

void StreamMemory::drop_mark() noexcept {
  if (mark_) raw_.drop(mark_);
  mark_ = nullptr;
}

}  // namespace fusewire
