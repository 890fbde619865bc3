// An order of work on a device. On the CPU a stream does nothing: work runs in the calling thread
// and the thread pool, and has finished when an op returns.
#pragma once

#include "core/device.h"

namespace fusewire {

struct Stream {
  Device device;
  void* handle = nullptr;  // cudaStream_t on CUDA, null on the CPU
  // On a recording stream nothing is launched: ops check their arguments and return. A dry run of a
  // layer on such a stream finds the lifetimes of its workspace tensors (core/workspace.h).
  bool recording = false;
  // Set while a model loads: a kernel with several implementations times them on its first call on
  // this stream, which waits for the stream. Never set while requests are served.
  bool tuning = false;
};

}  // namespace fusewire
