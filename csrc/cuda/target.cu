// Registers the CUDA kernels for their three element types.
#include <cuda_runtime.h>

#include "cuda/element.h"
#include "cuda/kernels.h"

namespace fusewire::cuda {

// Returns the leading dimension, in elements, of a matrix with `cols` columns: every row begins on
// a 128-byte line, which suits TMA, cuBLASLt and 16-byte vectors.
template <class T>
int64_t row_stride(int64_t cols) {
  constexpr int64_t kLine = 128 / sizeof(T);
  return (cols + kLine - 1) / kLine * kLine;
}

template <class T>
const char* target_name() {
  return "cuda";
}

namespace {

bool usable() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
  return count > 0;
}

template <class T>
constexpr Kernels kTable = {
#define KERNEL(result, name, arguments) name<T>,
#include "core/kernels.inc"
#undef KERNEL
};

template <class T>
constexpr TrainingKernels kTrainingTable = {
#define KERNEL(result, name, arguments) name<T>,
#include "core/training_kernels.inc"
#undef KERNEL
};

template <class T>
void register_element_type() {
  register_target(
      {"cuda", DeviceType::kCuda, 0, usable, kDTypeOf<T>, &kTable<T>, &kTrainingTable<T>});
}

const bool registered = [] {
  register_element_type<float>();
  register_element_type<__half>();
  register_element_type<__nv_bfloat16>();
  return true;
}();

}  // namespace
}  // namespace fusewire::cuda
