// What a type of device can do besides memory (core/raw_memory.h) and kernels (core/kernels.h):
// streams, copies between host and device, and recording work to replay it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/device.h"
#include "core/error.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace fusewire {

// A copy to the host that was begun.
class CopyOut {
 public:
  virtual ~CopyOut() = default;
  // Waits for the copy, not for what its stream was given after it; the bytes live as long as this.
  virtual const void* wait() = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual int device_count() const = 0;
  virtual std::string device_name(int index) const = 0;  // as its maker calls it

  // Makes a device the one that this thread's calls mean; true where `leave` has to undo it.
  virtual bool enter(int index) = 0;
  virtual void leave() noexcept = 0;

  virtual void* create_stream(int index) = 0;
  // Waits for the stream's work.
  virtual void destroy_stream(int index, void* handle) noexcept = 0;
  virtual void synchronize(const Stream& stream) = 0;
  // What `later` is given from now on begins when what `earlier` was given so far has ended, which
  // is waited for where `later` is being recorded. What is recorded on `earlier` is no work yet.
  virtual void order(const Stream& earlier, const Stream& later) = 0;

  // Copies are ordered by the stream. `copy_in` is free to read `from` until it returns only;
  // `copy_out` has finished when it returns; `copy` stays on the device.
  virtual void copy_in(void* to, const void* from, size_t bytes, const Stream& stream) = 0;
  virtual void copy_out(void* to, const void* from, size_t bytes, const Stream& stream) = 0;
  virtual void copy(void* to, const void* from, size_t bytes, const Stream& stream) = 0;
  // As `copy_out`, but returns at once where the device can go on by itself.
  virtual std::unique_ptr<CopyOut> begin_copy_out(const void* from, size_t bytes,
                                                  const Stream& stream);

  // Between begin and end the stream's work is recorded, not done. Error where a device cannot.
  virtual bool can_capture() const = 0;
  virtual void begin_capture(const Stream& stream) = 0;
  virtual std::shared_ptr<void> end_capture(const Stream& stream) = 0;
  virtual void abandon_capture(const Stream& stream) noexcept = 0;
  virtual void replay(void* recorded, const Stream& stream) = 0;
};

// Called once by each device's own file; the CPU is always there.
void register_runtime(DeviceType type, Runtime* runtime);

// Error when this build knows no such device.
Runtime& runtime(DeviceType type);
bool has_runtime(DeviceType type);

// For the length of a scope, the device that the thread's calls mean.
class CurrentDevice {
 public:
  explicit CurrentDevice(Device device)
      : runtime_(runtime(device.type)), entered_(runtime_.enter(device.index)) {}
  ~CurrentDevice() {
    if (entered_) runtime_.leave();
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  Runtime& runtime_;
  bool entered_;
};

// A stream that lives as long as the pointer. Error when the device does not exist.
std::shared_ptr<Stream> make_stream(Device device);

// What `later`, which may be anybody's, is given from now on begins when all streams that
// `make_stream` made of its device have done what they were given so far.
void order_after_all(const Stream& later);

// The tensor in the memory of the stream's device (itself, where it is there already), and in the
// host's. Dense tensors only; `upload`'s memory comes from the device's allocator under `tag`.
Tensor upload(const Tensor& host, const char* tag, const Stream& stream);
Tensor download(const Tensor& tensor, const Stream& stream);

// The values of a dense tensor on their way to the host, as the stream's work so far leaves them.
// The stream may go on meanwhile, and the tensor may be freed in its order.
class Readback {
 public:
  Readback(const Tensor& tensor, const Stream& stream);
  Tensor wait();

 private:
  const Shape shape_;
  const DType dtype_;
  const size_t bytes_;
  const std::unique_ptr<CopyOut> copy_;
};

}  // namespace fusewire
