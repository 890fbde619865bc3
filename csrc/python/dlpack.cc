#include "python/dlpack.h"

#include <array>
#include <optional>

#include "core/runtime.h"

namespace fusewire {
namespace {

namespace py = pybind11;

// The C structures of the protocol, which fixes their names and layout.
struct DLDevice {
  int32_t device_type, device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

constexpr int32_t kDLCpu = 1, kDLCuda = 2;
constexpr uint8_t kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4;

constexpr DLDataType kTypes[kDTypeCount] = {{kDLFloat, 32, 1},  {kDLFloat, 16, 1},
                                            {kDLBfloat, 16, 1}, {kDLInt, 32, 1},
                                            {kDLInt, 64, 1},    {kDLUInt, 8, 1}};

struct Exported {
  DLManagedTensor managed;
  Tensor tensor;
  std::array<int64_t, Shape::kMaxRank> shape, strides;
};

// Returns the stream that has to wait, if any. On CUDA the standard's 1 and 2 are the runtime's own
// handles of the legacy and the per-thread default stream.
std::optional<Stream> consumer_stream(const Device& device, const py::object& stream) {
  constexpr long long kDoNotWait = -1, kLegacyDefault = 1;
  int overflow = 0;
  long long number = kLegacyDefault;
  if (!stream.is_none()) {
    number = py::isinstance<py::int_>(stream)
                 ? PyLong_AsLongLongAndOverflow(stream.ptr(), &overflow)
                 : 0;
  }
  const bool on_cpu = device.type == DeviceType::kCpu;
  if (overflow || number < kDoNotWait || number == 0 ||
      (on_cpu && number != kDoNotWait && !stream.is_none())) {
    fail("Tensor.__dlpack__: stream: got ", std::string(py::repr(stream)).substr(0, 80), " for ",
         device.text(), ", wanted None",
         on_cpu ? " or -1; work on the cpu is done when a call returns"
                : ", -1, 1, 2 or a cudaStream_t's address; pass the stream that will read");
  }
  if (on_cpu || number == kDoNotWait) return {};
  return Stream{device, reinterpret_cast<void*>(static_cast<uintptr_t>(number))};
}

}  // namespace

py::tuple dlpack_device(const Tensor& tensor) {
  const int32_t type = tensor.device.type == DeviceType::kCpu ? kDLCpu : kDLCuda;
  return py::make_tuple(type, tensor.device.index);
}

py::capsule to_dlpack(const Tensor& tensor, const py::object& stream, const py::object&,
                      const py::object& dl_device, const py::object& copy) {
  const std::optional<Stream> consumer = consumer_stream(tensor.device, stream);
  if (!dl_device.is_none() && !dl_device.equal(dlpack_device(tensor))) {
    throw py::buffer_error("Tensor.__dlpack__: exports on its own device only");
  }
  if (!copy.is_none() && copy.cast<bool>()) {
    throw py::buffer_error("Tensor.__dlpack__: exports views, not copies");
  }
  if (consumer) order_after_all(*consumer);
  auto* exported = new Exported{{}, tensor, {}, {}};
  const int rank = tensor.shape.rank();
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    exported->shape[i] = tensor.shape[i];
    exported->strides[i] = stride;
    stride = i == rank - 1 ? tensor.row_stride : stride * tensor.shape[i];
  }
  const int32_t type = tensor.device.type == DeviceType::kCpu ? kDLCpu : kDLCuda;
  exported->managed = {{tensor.data,
                        {type, tensor.device.index},
                        rank,
                        kTypes[static_cast<int>(tensor.dtype)],
                        exported->shape.data(),
                        exported->strides.data(),
                        0},
                       exported,
                       [](DLManagedTensor* m) { delete static_cast<Exported*>(m->manager_ctx); }};
  // A consumer renames the capsule and takes over the deleter; otherwise the capsule calls it.
  return py::capsule(&exported->managed, "dltensor", [](PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    managed->deleter(managed);
  });
}

Tensor from_dlpack(const py::object& source) {
  py::object capsule = source.attr("__dlpack__")();
  auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (!managed) throw py::error_already_set();
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  std::shared_ptr<void> owner(managed, [](DLManagedTensor* m) {
    py::gil_scoped_acquire gil;
    if (m->deleter) m->deleter(m);
  });

  const DLTensor& t = managed->dl_tensor;
  if (t.device.device_type != kDLCpu && t.device.device_type != kDLCuda) {
    fail("Tensor.from_dlpack: got DLPack device type ", t.device.device_type,
         ", wanted cpu (1) or cuda (2)");
  }
  const Device device =
      t.device.device_type == kDLCpu ? Device{} : Device{DeviceType::kCuda, t.device.device_id};
  int found = -1;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kTypes[i].code == t.dtype.code && kTypes[i].bits == t.dtype.bits && t.dtype.lanes == 1) {
      found = i;
    }
  }
  if (found < 0) {
    fail("Tensor.from_dlpack: got type code ", int{t.dtype.code}, " of ", int{t.dtype.bits},
         " bits, wanted float32, float16, bfloat16, int32, int64 or uint8");
  }
  Shape shape;
  for (int i = 0; i < t.ndim; ++i) shape.push_back(t.shape[i]);
  int64_t dense = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.strides && t.shape[i] > 1 && t.strides[i] != dense) {
      fail("Tensor.from_dlpack: got a strided tensor, wanted a contiguous one");
    }
    dense *= t.shape[i];
  }
  return Tensor(static_cast<char*>(t.data) + t.byte_offset, shape, static_cast<DType>(found),
                device, owner);
}

}  // namespace fusewire
