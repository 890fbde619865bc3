// What a type of device provides besides memory (core/raw_memory.h) and kernels (core/kernels.h):
// streams, copies between host and device, and capture and replay of work.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/device.h"
#include "core/error.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace fusewire {

// An asynchronous copy to the host.
class CopyOut {
 public:
  virtual ~CopyOut() = default;
  // Waits for the copy, but not for later work on its stream. The bytes live as long as this
  // object.
  virtual const void* wait() = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual int device_count() const = 0;
  virtual std::string device_name(int index) const = 0;  // as its vendor calls it

  // Makes a device current for this thread; returns true if `leave` must restore the previous one.
  virtual bool enter(int index) = 0;
  virtual void leave() noexcept = 0;

  virtual void* create_stream(int index) = 0;
  // Waits for the stream's work. A later stream may have the same handle.
  virtual void destroy_stream(int index, void* handle) noexcept = 0;
  virtual void synchronize(const Stream& stream) = 0;
  // Work submitted to `later` from now on starts after the work submitted to `earlier` so far. If
  // `later` is being captured, this call waits for that work. Does nothing if `earlier` is being
  // captured.
  virtual void order(const Stream& earlier, const Stream& later) = 0;

  // Copies are ordered by the stream. `copy_in` reads `from` only until it returns; `copy_out` has
  // finished when it returns; `copy` is between addresses of the device.
  virtual void copy_in(void* to, const void* from, size_t bytes, const Stream& stream) = 0;
  virtual void copy_out(void* to, const void* from, size_t bytes, const Stream& stream) = 0;
  virtual void copy(void* to, const void* from, size_t bytes, const Stream& stream) = 0;
  // As `copy_out`, but returns at once where the device can copy asynchronously.
  virtual std::unique_ptr<CopyOut> begin_copy_out(const void* from, size_t bytes,
                                                  const Stream& stream);

  // Between begin_capture and end_capture the stream's work is recorded, not executed. Error on a
  // device that cannot capture.
  virtual bool can_capture() const = 0;
  virtual void begin_capture(const Stream& stream) = 0;
  virtual std::shared_ptr<void> end_capture(const Stream& stream) = 0;
  virtual void abandon_capture(const Stream& stream) noexcept = 0;
  virtual void replay(void* recorded, const Stream& stream) = 0;
};

// Called once by each device's own file; the CPU is registered from the start.
void register_runtime(DeviceType type, Runtime* runtime);

// Returns the runtime of a type of device. Error if this build has none.
Runtime& runtime(DeviceType type);
bool has_runtime(DeviceType type);

// Makes a device current for the calling thread until the end of a scope.
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

// Returns a stream that lives as long as the pointer. Error if the device does not exist.
std::shared_ptr<Stream> make_stream(Device device);

// Makes work submitted to `later` from now on wait for the work submitted so far to every stream
// that `make_stream` created on its device. `later` itself may come from elsewhere.
void order_after_all(const Stream& later);

// Return the tensor in the memory of the stream's device, and of the host; a tensor that is there
// already is returned itself. `upload` takes dense tensors and allocates from the device's
// allocator under `tag`; `download` also takes a matrix with a row stride, and keeps the stride.
Tensor upload(const Tensor& host, const char* tag, const Stream& stream);
Tensor download(const Tensor& tensor, const Stream& stream);

// An asynchronous copy of a dense tensor to the host, with the values after the stream's work so
// far. The stream may continue meanwhile, and the tensor may be freed in stream order.
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
