// Segments of memory from cudaMalloc, and events that mark the progress of streams.
//
// Any call here may happen while some thread captures a graph. In the default capture modes,
// cudaMalloc and event queries would invalidate the capture. They therefore run in the relaxed
// mode, which exempts only this thread, for the length of the call. None of them touches the stream
// that is being captured. Only `finish` synchronises the device as a whole, as its callers know.
#include <cuda_runtime.h>

#include <mutex>
#include <vector>

#include "core/raw_memory.h"
#include "core/runtime.h"
#include "cuda/launch.h"
#include "cuda/runtime/current_device.h"
#include "cuda/runtime/relaxed_capture.h"

namespace fusewire::cuda {
namespace {

// Makes a device current for a scope, and the calls of the scope harmless for captures in progress.
struct Scope {
  explicit Scope(int index) noexcept : here(index) {}

  const Here here;
  const RelaxedCapture relaxed;
};

class CudaMemory : public RawMemory {
 public:
  explicit CudaMemory(int index) : index_(index) {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) {
      cudaGetLastError();
      fail_as(ErrorKind::kDevice, "device: got ", device().text(),
              ", wanted a GPU that the driver knows; it answers ", cudaGetErrorName(status), " (",
              cudaGetErrorString(status), "): install or update the NVIDIA driver, or use cpu");
    }
    if (index < 0 || index >= count) {
      fail("device: got ", device().text(), ", wanted cuda:0 to cuda:", count - 1, " of the ",
           count, " that are visible; check CUDA_VISIBLE_DEVICES or use one of these");
    }
  }

  ~CudaMemory() override {
    const Scope scope(index_);
    for (cudaEvent_t event : idle_events_) cudaEventDestroy(event);
  }

  Device device() const override { return {DeviceType::kCuda, index_}; }
  // One 16-byte vector per lane of a warp. It suffices for tensor maps (128) and cuBLASLt's fastest
  // kernels (16), and equals the alignment of torch's allocator.
  size_t alignment() const override { return 512; }
  // The granularity at which the driver maps memory: the rest of a page would be lost.
  size_t page() const override { return size_t{2} << 20; }

  size_t free_bytes() override {
    const CurrentDevice here(device());
    const RelaxedCapture relaxed;
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "device memory");
    return free;
  }

  void* allocate(size_t bytes) override {
    const CurrentDevice here(device());  // reports errors: cudaMalloc could use another device
    const RelaxedCapture relaxed;
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(status, "device memory");
    return data;
  }

  // cudaFree itself synchronises the device. An error here comes from an earlier kernel, in which
  // case the next checked call reports it too, or from the driver's shutdown at the end of the
  // process.
  void release(void* data, size_t) noexcept override {
    const Scope scope(index_);
    if (cudaFree(data) != cudaSuccess) cudaGetLastError();
  }

  Progress set_mark(const Stream& stream, void** mark) noexcept override {
    const Scope scope(index_);
    const std::lock_guard lock(capture_begins());
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
    // For the default stream this fails while a stream that it synchronises with is being captured.
    if (cudaStreamIsCapturing(handle(stream), &capture) != cudaSuccess) cudaGetLastError();
    if (capture != cudaStreamCaptureStatusNone) return Progress::kUnknown;
    const cudaError_t status = cudaStreamQuery(handle(stream));
    if (status == cudaSuccess) return Progress::kDone;
    cudaGetLastError();
    if (status != cudaErrorNotReady) return Progress::kUnknown;
    cudaEvent_t event = take_event();
    if (!event) return Progress::kUnknown;
    if (cudaEventRecord(event, handle(stream)) != cudaSuccess) {
      cudaGetLastError();
      idle_events_.push_back(event);
      return Progress::kUnknown;
    }
    *mark = event;
    return Progress::kPending;
  }

  bool passed(void* mark) noexcept override {
    const Scope scope(index_);
    const bool done = cudaEventQuery(static_cast<cudaEvent_t>(mark)) == cudaSuccess;
    if (!done) cudaGetLastError();
    return done;
  }

  bool wait(void* mark) noexcept override {
    const Scope scope(index_);
    const bool done = cudaEventSynchronize(static_cast<cudaEvent_t>(mark)) == cudaSuccess;
    if (!done) cudaGetLastError();
    return done;
  }

  void drop(void* mark) noexcept override {
    idle_events_.push_back(static_cast<cudaEvent_t>(mark));
  }

  bool finish() noexcept override {
    const Scope scope(index_);
    const bool done = cudaDeviceSynchronize() == cudaSuccess;
    if (!done) cudaGetLastError();
    return done;
  }

 private:
  cudaEvent_t take_event() noexcept {
    cudaEvent_t event = nullptr;
    if (!idle_events_.empty()) {
      event = idle_events_.back();
      idle_events_.pop_back();
    } else if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    return event;
  }

  const int index_;
  std::vector<cudaEvent_t> idle_events_;
};

const bool registered = [] {
  register_raw_memory(DeviceType::kCuda, [](int index) -> std::shared_ptr<RawMemory> {
    return std::make_shared<CudaMemory>(index);
  });
  return true;
}();

}  // namespace
}  // namespace fusewire::cuda
