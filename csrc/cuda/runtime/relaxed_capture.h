// Lets this thread allocate device memory and wait for events while it or another thread captures a
// graph. These operations must not be part of the graph.
#pragma once

#include <mutex>

#include "cuda/launch.h"

namespace fusewire::cuda {

// A mutex that is held while this library begins a capture, and by code that queries whether a
// stream is being captured for as long as it relies on the answer: a query of a stream that is
// being captured would invalidate the capture.
inline std::mutex& capture_begins() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() { cudaThreadExchangeStreamCaptureMode(&mode_); }  // swaps mode_ and thread's mode

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace fusewire::cuda
