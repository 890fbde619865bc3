// Sets the current device of a thread for a scope.
//
// It does not use cudaSetDevice, which creates a context on the device: setting GPU 0, where every
// thread begins, again at the end of the scope would take half a gigabyte there, even in a process
// that computes on GPU 1 alone. Pushing and popping the context of a device leaves the thread in
// the state it was in.
#pragma once

#include <cuda.h>

namespace fusewire::cuda {

// Makes the device current. Sets `pushed` to whether pop_context() must follow, which is not the
// case if the device is current already. Returns CUDA_SUCCESS or the error.
CUresult push_context(int index, bool* pushed) noexcept;
void pop_context() noexcept;

// Makes a device current for a scope. Errors are ignored here; the next checked call reports them.
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
