// Registers the CUDA kernels for their three element types.
#include <cuda_runtime.h>

#include "cuda/element.h"
#include "cuda/kernels.h"

namespace fusewire::cuda {

// Matrices begin every row on a 128-byte line: what TMA, cuBLASLt and 16-byte vectors all like.
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

const bool registered = [] {
  register_target({"cuda", DeviceType::kCuda, 0, usable, DType::kFloat32, &kTable<float>});
  register_target({"cuda", DeviceType::kCuda, 0, usable, DType::kFloat16, &kTable<__half>});
  register_target({"cuda", DeviceType::kCuda, 0, usable, DType::kBFloat16, &kTable<__nv_bfloat16>});
  return true;
}();

}  // namespace
}  // namespace fusewire::cuda
