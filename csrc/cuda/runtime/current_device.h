// The device that a thread's calls mean, for the length of a scope.
//
// Not by cudaSetDevice: it makes a context on the device it is given, so that going back to GPU 0,
// where a thread begins, would take half a gigabyte there from whoever computes on GPU 1 alone.
// Pushing the context of a device leaves the thread as it was found.
#pragma once

#include <cuda.h>

namespace fusewire::cuda {

// CUDA_SUCCESS, and in `pushed` whether pop_context has to follow: not where the device is the
// thread's already.
CUresult push_context(int index, bool* pushed) noexcept;
void pop_context() noexcept;

// What fails here, the next checked call reports.
class Here {
 public:
  explicit Here(int index) noexcept { push_context(index, &pushed_); }
  ~Here() {
    if (pushed_) pop_context();
  }
  Here(const Here&) = delete;
  Here& operator=(const Here&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace fusewire::cuda
