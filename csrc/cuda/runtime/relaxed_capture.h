// Lets this thread allocate device memory and wait for events while a graph is being captured, by
// itself or by another thread. What it does so must not be part of the graph.
#pragma once

#include <mutex>

#include "cuda/launch.h"

namespace fusewire::cuda {

// Held while a capture of ours begins, and by who asks whether a stream is captured for as long as
// the answer has to stay: a query of a captured stream would break its capture.
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
  void exchange() { cudaThreadExchangeStreamCaptureMode(&mode_); }  // swaps mode_ and the thread's

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace fusewire::cuda
