// An order of work on a device. On the CPU a stream is a no-op: work runs in the calling thread
// and the thread pool, and has finished when an op returns.
#pragma once

#include "core/device.h"

namespace fusewire {

struct Stream {
  Device device;
  void* handle = nullptr;  // cudaStream_t on CUDA, null on the CPU
  // A recording stream launches nothing: ops check their arguments and return. A dry run of a
  // layer on such a stream is how workspace lifetimes become known (core/workspace.h).
  bool recording = false;
  // While a model loads, a kernel that can be computed in several ways is timed when it is first
  // seen on the stream; that waits for the stream. Never while a request does.
  bool tuning = false;
};

}  // namespace fusewire
