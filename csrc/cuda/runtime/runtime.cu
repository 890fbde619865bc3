// Streams, copies and CUDA graphs through the CUDA runtime.
#include <cuda_runtime.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/runtime.h"
#include "cuda/launch.h"
#include "cuda/runtime/current_device.h"
#include "cuda/runtime/pinned_memory.h"
#include "cuda/runtime/relaxed_capture.h"

namespace fusewire::cuda {
namespace {

// The driver stages copies from pageable memory of up to kTakenAtOnce bytes immediately. For larger
// ones the host may block until the stream reaches them. Copies of up to kMostPinned bytes
// therefore go through pinned memory, where it does not. Larger ones are weights, for which
// blocking is acceptable.
constexpr size_t kTakenAtOnce = size_t{1} << 16, kMostPinned = size_t{1} << 20;

class PinnedCopyOut : public CopyOut {
 public:
  PinnedCopyOut(const void* from, size_t bytes, const Stream& stream)
      : index_(stream.device.index), block_(take_pinned(index_, bytes)) {
    const Here here(index_);
    cudaError_t status =
        cudaMemcpyAsync(block_.data, from, bytes, cudaMemcpyDeviceToHost, handle(stream));
    if (status == cudaSuccess) status = cudaEventRecord(block_.copied, handle(stream));
    if (status != cudaSuccess) give_pinned(index_, block_);
    check(status, "copy out");
  }
  ~PinnedCopyOut() override { give_pinned(index_, block_); }
  PinnedCopyOut(const PinnedCopyOut&) = delete;
  PinnedCopyOut& operator=(const PinnedCopyOut&) = delete;

  const void* wait() override {
    const Here here(index_);
    check(cudaEventSynchronize(block_.copied), "copy out");
    return block_.data;
  }

 private:
  const int index_;
  const PinnedBlock block_;
};

// Streams that nothing holds any more, for the next ones. The scratch memory that kernels keep for
// a stream is never freed, as graphs hold its addresses: with new handles it would grow with every
// model that is loaded.
struct IdleStreams {
  std::mutex mutex;
  std::map<int, std::vector<cudaStream_t>> of_device;
};

IdleStreams& idle_streams() {
  static auto* all = new IdleStreams;
  return *all;
}

class CudaRuntime : public Runtime {
 public:
  int device_count() const override {
    int count = 0;
    // Without a driver the count is 0, which is not an error.
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    return count;
  }

  std::string device_name(int index) const override {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index), "device properties");
    return properties.name;
  }

  bool enter(int index) override {
    bool entered = false;
    const CUresult status = push_context(index, &entered);
    check(static_cast<cudaError_t>(status), "device");  // driver and runtime share error codes
    return entered;
  }

  void leave() noexcept override { pop_context(); }

  void* create_stream(int index) override {
    const CurrentDevice here({DeviceType::kCuda, index});
    {
      const std::lock_guard lock(idle_streams().mutex);
      std::vector<cudaStream_t>& idle = idle_streams().of_device[index];
      if (!idle.empty()) {
        cudaStream_t found = idle.back();
        idle.pop_back();
        return found;
      }
    }
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    return stream;
  }

  void destroy_stream(int index, void* stream) noexcept override {
    const Here here(index);
    auto ended = static_cast<cudaStream_t>(stream);
    if (cudaStreamSynchronize(ended) == cudaSuccess) {
      const std::lock_guard lock(idle_streams().mutex);
      idle_streams().of_device[index].push_back(ended);
    } else {  // of a lost device, or in the middle of a capture
      cudaGetLastError();
      cudaStreamDestroy(ended);
    }
  }

  void synchronize(const Stream& stream) override {
    const Here here(stream.device.index);
    check(cudaStreamSynchronize(handle(stream)), "stream synchronisation");
  }

  void order(const Stream& earlier, const Stream& later) override {
    const Here here(earlier.device.index);
    const std::lock_guard lock(capture_begins());
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
    check(cudaStreamIsCapturing(handle(earlier), &capture), "stream order");
    if (capture != cudaStreamCaptureStatusNone) return;
    if (cudaStreamIsCapturing(handle(later), &capture) != cudaSuccess) cudaGetLastError();
    if (capture != cudaStreamCaptureStatusNone) {
      // A capture must not depend on work outside of it, so the host waits for that work here.
      const RelaxedCapture relaxed;
      check(cudaStreamSynchronize(handle(earlier)), "stream order");
      return;
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "stream order");
    cudaError_t status = cudaEventRecord(event, handle(earlier));
    if (status == cudaSuccess) status = cudaStreamWaitEvent(handle(later), event, 0);
    cudaEventDestroy(event);  // the wait stays in effect
    check(status, "stream order");
  }

  void copy_in(void* to, const void* from, size_t bytes, const Stream& stream) override {
    const Here here(stream.device.index);
    if (bytes <= kTakenAtOnce || bytes > kMostPinned) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, handle(stream)), "copy in");
      return;
    }
    const PinnedBlock block = take_pinned(stream.device.index, bytes);
    std::memcpy(block.data, from, bytes);
    cudaError_t status =
        cudaMemcpyAsync(to, block.data, bytes, cudaMemcpyHostToDevice, handle(stream));
    if (status == cudaSuccess) status = cudaEventRecord(block.copied, handle(stream));
    give_pinned(stream.device.index, block);
    check(status, "copy in");
  }

  std::unique_ptr<CopyOut> begin_copy_out(const void* from, size_t bytes,
                                          const Stream& stream) override {
    return std::make_unique<PinnedCopyOut>(from, bytes, stream);
  }

  void copy_out(void* to, const void* from, size_t bytes, const Stream& stream) override {
    const Here here(stream.device.index);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, handle(stream)), "copy out");
    synchronize(stream);
  }

  void copy(void* to, const void* from, size_t bytes, const Stream& stream) override {
    const Here here(stream.device.index);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, handle(stream)), "copy");
  }

  bool can_capture() const override { return true; }

  void begin_capture(const Stream& stream) override {
    // Relaxed, because Python may garbage-collect another model in this thread during the capture;
    // releasing its streams and memory would invalidate a stricter capture.
    const CurrentDevice here(stream.device);
    const std::lock_guard lock(capture_begins());
    check(cudaStreamBeginCapture(handle(stream), cudaStreamCaptureModeRelaxed), "capture");
  }

  std::shared_ptr<void> end_capture(const Stream& stream) override {
    const CurrentDevice here(stream.device);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(handle(stream), &graph), "capture");
    cudaGraphExec_t exec = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "graph");
    return {exec, [index = stream.device.index](cudaGraphExec_t e) {
              const Here there(index);
              cudaGraphExecDestroy(e);
            }};
  }

  void abandon_capture(const Stream& stream) noexcept override {
    const Here here(stream.device.index);
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(handle(stream), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
  }

  void replay(void* recorded, const Stream& stream) override {
    const CurrentDevice here(stream.device);
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recorded), handle(stream)), "graph launch");
  }
};

const bool registered = [] {
  register_runtime(DeviceType::kCuda, new CudaRuntime);
  return true;
}();

}  // namespace
}  // namespace fusewire::cuda
