#include "core/runtime.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "core/allocator.h"
#include "core/error.h"

namespace fusewire {
namespace {

// A copy that has already finished.
class EndedCopy : public CopyOut {
 public:
  explicit EndedCopy(size_t bytes) : bytes_(bytes) {}
  void* data() { return bytes_.data(); }
  const void* wait() override { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
};

class CpuRuntime : public Runtime {
 public:
  int device_count() const override { return 1; }
  std::string device_name(int) const override { return "cpu"; }
  bool enter(int) override { return false; }
  void leave() noexcept override {}
  void* create_stream(int) override { return nullptr; }
  void destroy_stream(int, void*) noexcept override {}
  void synchronize(const Stream&) override {}
  void order(const Stream&, const Stream&) override {}
  void copy_in(void* to, const void* from, size_t bytes, const Stream&) override {
    std::memcpy(to, from, bytes);
  }
  void copy_out(void* to, const void* from, size_t bytes, const Stream&) override {
    std::memcpy(to, from, bytes);
  }
  void copy(void* to, const void* from, size_t bytes, const Stream&) override {
    std::memcpy(to, from, bytes);
  }
  bool can_capture() const override { return false; }
  void begin_capture(const Stream&) override { refuse(); }
  std::shared_ptr<void> end_capture(const Stream&) override { refuse(); }
  void abandon_capture(const Stream&) noexcept override {}
  void replay(void*, const Stream&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    fail(
        "capture: got a stream on the cpu, wanted one of a device that records work; call "
        "directly");
  }
};

std::array<Runtime*, kDeviceTypeCount>& registry() {
  static CpuRuntime cpu;
  static std::array<Runtime*, kDeviceTypeCount> runtimes = {&cpu};
  return runtimes;
}

// The streams that `make_stream` created and that are not destroyed yet.
struct Living {
  std::mutex mutex;
  std::vector<const Stream*> streams;
};

Living& living() {
  static auto* all = new Living;
  return *all;
}

}  // namespace

std::unique_ptr<CopyOut> Runtime::begin_copy_out(const void* from, size_t bytes,
                                                 const Stream& stream) {
  auto copy = std::make_unique<EndedCopy>(bytes);
  copy_out(copy->data(), from, bytes, stream);
  return copy;
}

void register_runtime(DeviceType type, Runtime* runtime) {
  registry()[static_cast<int>(type)] = runtime;
}

bool has_runtime(DeviceType type) {
  return registry()[static_cast<int>(type)] != nullptr;
}

Runtime& runtime(DeviceType type) {
  Runtime* found = registry()[static_cast<int>(type)];
  if (!found) {
    fail(
        "device: got cuda, wanted a device this build has kernels for: cpu; build with "
        "FUSEWIRE_CUDA=ON for GPUs");
  }
  return *found;
}

std::shared_ptr<Stream> make_stream(Device device) {
  Runtime& made_by = runtime(device.type);
  const int count = made_by.device_count();
  if (device.index < 0 || device.index >= count) {
    fail("device: got ", device.text(), ", wanted one of ", count,
         count ? " on this machine; count from 0"
               : " on this machine, which shows none; check nvidia-smi (CUDA 13 wants driver 580 "
                 "or later), or use device cpu");
  }
  auto* stream = new Stream{device, made_by.create_stream(device.index)};
  {
    const std::lock_guard lock(living().mutex);
    living().streams.push_back(stream);
  }
  return {stream, [&made_by](Stream* s) {
            {
              const std::lock_guard lock(living().mutex);
              auto& streams = living().streams;
              streams.erase(std::find(streams.begin(), streams.end(), s));
            }
            try {
              forget_stream(*s);  // its handle may be reused for another stream
            } catch (const Error&) {
              // The device is lost. Keeping the memory under this handle does no harm: a new stream
              // with the handle starts after this one's work.
            }
            made_by.destroy_stream(s->device.index, s->handle);
            delete s;
          }};
}

void order_after_all(const Stream& later) {
  const std::lock_guard lock(living().mutex);
  for (const Stream* stream : living().streams) {
    if (stream->device == later.device && stream->handle != later.handle) {
      runtime(later.device.type).order(*stream, later);
    }
  }
}

Tensor upload(const Tensor& host, const char* tag, const Stream& stream) {
  if (host.device == stream.device) return host;
  if (host.device.type != DeviceType::kCpu || !host.contiguous()) {
    fail("upload: got a tensor on ", host.device.text(),
         host.contiguous() ? "" : " with rows apart",
         ", wanted a dense one on the cpu; download or copy it first");
  }
  Tensor out =
      allocate_tensor(default_allocator(stream.device), host.shape, host.dtype, tag, stream);
  if (host.bytes()) {
    runtime(stream.device.type).copy_in(out.data, host.data, host.bytes(), stream);
  }
  return out;
}

Tensor download(const Tensor& tensor, const Stream& stream) {
  if (tensor.device.type == DeviceType::kCpu) return tensor;
  if (tensor.device != stream.device) {
    fail("download: got a tensor on ", tensor.device.text(), ", wanted one on ",
         stream.device.text(), ", the stream's device");
  }
  // Rows with a stride are copied with the elements between them.
  const bool apart = !tensor.contiguous();
  const Shape shape = apart ? Shape{tensor.shape[0], tensor.row_stride} : tensor.shape;
  Tensor out = allocate_tensor(default_allocator(), shape, tensor.dtype, "download");
  if (apart) out = out.columns(0, tensor.shape[1]);
  if (tensor.bytes()) {
    const int64_t between = apart ? tensor.row_stride - tensor.shape[1] : 0;
    const int64_t elements =
        tensor.shape.elements() + (apart ? (tensor.shape[0] - 1) * between : 0);
    runtime(tensor.device.type)
        .copy_out(out.data, tensor.data, static_cast<size_t>(elements) * size_of(tensor.dtype),
                  stream);
  }
  return out;
}

namespace {

std::unique_ptr<CopyOut> begin_copy_out(const Tensor& tensor, const Stream& stream) {
  if (tensor.device != stream.device || !tensor.contiguous() || tensor.bytes() == 0) {
    fail("readback: got a tensor of ", tensor.bytes(), " bytes on ", tensor.device.text(),
         tensor.contiguous() ? "" : " with rows apart", ", wanted a dense one on ",
         stream.device.text(), ", the stream's device, that is not empty");
  }
  return runtime(tensor.device.type).begin_copy_out(tensor.data, tensor.bytes(), stream);
}

}  // namespace

Readback::Readback(const Tensor& tensor, const Stream& stream)
    : shape_(tensor.shape),
      dtype_(tensor.dtype),
      bytes_(tensor.bytes()),
      copy_(begin_copy_out(tensor, stream)) {}

Tensor Readback::wait() {
  Tensor out = allocate_tensor(default_allocator(), shape_, dtype_, "download");
  std::memcpy(out.data, copy_->wait(), bytes_);
  return out;
}

}  // namespace fusewire
