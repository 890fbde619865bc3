#include <cuda_runtime.h>

#include <atomic>

#include "cuda/runtime/current_device.h"

namespace fusewire::cuda {
namespace {

// Looks up a function of the driver. The runtime does this, so libcuda need not be linked, and no
// context is created.
template <class Function>
bool find(const char* name, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) !=
      cudaSuccess) {
    cudaGetLastError();
  }
  *function = reinterpret_cast<Function>(found);
  return result == cudaDriverEntryPointSuccess && found;
}

struct Driver {
  decltype(&cuCtxGetCurrent) current = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
  decltype(&cuDeviceGet) device = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  bool complete = find("cuCtxGetCurrent", &current) && find("cuCtxPushCurrent", &push) &&
                  find("cuCtxPopCurrent", &pop) && find("cuDeviceGet", &device) &&
                  find("cuDevicePrimaryCtxRetain", &retain);
};

const Driver& driver() {
  static const Driver found;
  return found;
}

// Returns the primary context of a device, which the runtime uses. It is retained until the process
// ends.
CUresult primary_context(int index, CUcontext* context) {
  constexpr int kDevices = 64;
  static std::atomic<CUcontext> contexts[kDevices];
  if (index < 0 || index >= kDevices) return CUDA_ERROR_INVALID_DEVICE;
  *context = contexts[index].load(std::memory_order_acquire);
  if (*context) return CUDA_SUCCESS;
  CUdevice device = 0;
  CUresult status = driver().device(&device, index);
  if (status == CUDA_SUCCESS) status = driver().retain(context, device);
  if (status == CUDA_SUCCESS) contexts[index].store(*context, std::memory_order_release);
  return status;
}

}  // namespace

CUresult push_context(int index, bool* pushed) noexcept {
  *pushed = false;
  if (!driver().complete) return CUDA_ERROR_NOT_FOUND;
  CUcontext wanted = nullptr, current = nullptr;
  CUresult status = primary_context(index, &wanted);
  if (status == CUDA_SUCCESS) status = driver().current(&current);
  if (status != CUDA_SUCCESS || current == wanted) return status;
  status = driver().push(wanted);
  *pushed = status == CUDA_SUCCESS;
  return status;
}

void pop_context() noexcept {
  CUcontext ours = nullptr;
  driver().pop(&ours);
}

}  // namespace fusewire::cuda
