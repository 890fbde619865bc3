// Binds Tensor, with conversions from and to numpy and DLPack that never copy.
#include "core/tensor.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/allocator.h"
#include "core/kernels.h"
#include "core/runtime.h"
#include "python/dlpack.h"
#include "python/register.h"

namespace fusewire {
namespace {

namespace py = pybind11;

Shape shape_of(const std::vector<int64_t>& dims) {
  Shape shape;
  for (int64_t dim : dims) shape.push_back(dim);
  return shape;
}

py::tuple shape_tuple(const Tensor& t) {
  py::tuple out(t.shape.rank());
  for (int i = 0; i < t.shape.rank(); ++i) out[i] = t.shape[i];
  return out;
}

Tensor from_numpy(const py::array& array) {
  DType dtype;
  const char kind = array.dtype().kind();
  const auto size = array.dtype().itemsize();
  if (kind == 'f' && size == 4) {
    dtype = DType::kFloat32;
  } else if (kind == 'f' && size == 2) {
    dtype = DType::kFloat16;
  } else if (kind == 'i' && size == 4) {
    dtype = DType::kInt32;
  } else if (kind == 'i' && size == 8) {
    dtype = DType::kInt64;
  } else if (kind == 'u' && size == 1) {
    dtype = DType::kUInt8;
  } else if (kind == 'u' && size == 2) {
    dtype = DType::kBFloat16;  // numpy has no bfloat16: uint16 stands for its bits
  } else {
    fail("Tensor.from_numpy: got dtype ", std::string(py::str(array.dtype())),
         ", wanted float32, float16, int32, int64, uint8, or uint16 for the bits of a bfloat16");
  }
  if (!(array.flags() & py::array::c_style)) {
    fail("Tensor.from_numpy: got an array that is not C-contiguous; use numpy.ascontiguousarray");
  }
  Shape shape;
  for (py::ssize_t i = 0; i < array.ndim(); ++i) shape.push_back(array.shape(i));
  auto* kept = new py::array(array);
  std::shared_ptr<void> owner(kept, [](py::array* p) {
    py::gil_scoped_acquire gil;
    delete p;
  });
  return Tensor(const_cast<void*>(array.data()), shape, dtype, Device{}, owner);
}

py::array to_numpy(const Tensor& t) {
  if (t.device.type != DeviceType::kCpu) {
    fail("Tensor.numpy: got a tensor on ", t.device.text(),
         ", wanted one on the cpu; download it first");
  }
  const char* format = t.dtype == DType::kFloat32   ? "f4"
                       : t.dtype == DType::kFloat16 ? "f2"
                       : t.dtype == DType::kInt32   ? "i4"
                       : t.dtype == DType::kInt64   ? "i8"
                       : t.dtype == DType::kUInt8   ? "u1"
                                                    : "u2";  // the bits of a bfloat16
  const auto item = static_cast<py::ssize_t>(size_of(t.dtype));
  std::vector<py::ssize_t> shape(t.shape.rank()), strides(t.shape.rank());
  py::ssize_t stride = item;
  for (int i = t.shape.rank() - 1; i >= 0; --i) {
    shape[i] = t.shape[i];
    strides[i] = stride;
    stride = i == t.shape.rank() - 1 ? t.row_stride * item : stride * t.shape[i];
  }
  return py::array(py::dtype(format), shape, strides, t.data, py::cast(t));
}

Tensor section(const Tensor& whole, size_t begin, const std::vector<int64_t>& dims,
               std::string_view dtype) {
  const Shape shape = shape_of(dims);
  const DType type = dtype_named(dtype);
  const size_t bytes = checked_bytes(shape, type);
  if (begin % size_of(type) || bytes > whole.bytes() || begin > whole.bytes() - bytes) {
    fail("Tensor.section: got ", dtype, shape.text(), " at byte ", begin,
         ", wanted one aligned and within ", whole.bytes(), " bytes");
  }
  return {whole.as<char>() + begin, shape, type, whole.device, whole.owner};
}

Tensor first_rows(const Tensor& whole, int64_t count) {
  const int rank = whole.shape.rank();
  if (rank < 1 || rank > 2 || count < 0 || count > whole.shape[0]) {
    fail("Tensor.first: got ", count, " rows of ", whole.shape.text(),
         ", wanted at most all of a vector or matrix");
  }
  return whole.first(count);
}

Tensor columns(const Tensor& whole, int64_t begin, int64_t width) {
  if (whole.shape.rank() != 2 || begin < 0 || width < 0 || begin > whole.shape[1] - width) {
    fail("Tensor.columns: got ", width, " from column ", begin, " of ", whole.shape.text(),
         " on, wanted columns of a matrix");
  }
  return whole.columns(begin, width);
}

// Copies into existing memory.
void write(const Tensor& to, const Tensor& source, const Stream& stream) {
  const bool from_host = source.device.type == DeviceType::kCpu;
  if (to.device != stream.device || !(from_host || source.device == to.device) ||
      to.bytes() != source.bytes() || !to.contiguous() || !source.contiguous()) {
    fail("write: got ", source.bytes(), " bytes on ", source.device.text(), " for ", to.bytes(),
         " on ", to.device.text(), ", wanted dense tensors of one size, from the cpu or ",
         stream.device.text(), " to ", stream.device.text());
  }
  Runtime& of_device = runtime(to.device.type);
  if (from_host) {
    of_device.copy_in(to.data, source.data, source.bytes(), stream);
  } else {
    of_device.copy(to.data, source.data, source.bytes(), stream);
  }
}

}  // namespace

void register_tensor(py::module_& m) {
  py::class_<Tensor>(m, "Tensor", "Data, shape, dtype, device, owner.")
      .def_static("from_numpy", &from_numpy, py::arg("array"),
                  "Returns a view of a C-contiguous array, which is kept alive; uint16 stands for "
                  "the bits of bfloat16.")
      .def_static("from_dlpack", &from_dlpack, py::arg("source"),
                  "Returns a view of any object with __dlpack__, which is kept alive. Synchronise "
                  "with the source first: its streams are not ordered with fusewire's.")
      .def("numpy", &to_numpy,
           "Returns a numpy view that keeps the tensor alive; the bits of bfloat16 are uint16.")
      .def("section", &section, py::arg("begin"), py::arg("shape"), py::arg("dtype"),
           "Returns a view of this tensor's bytes from byte `begin` on, as a dense tensor.")
      .def("first", &first_rows, py::arg("count"),
           "Returns the first rows of a vector or matrix, as a view.")
      .def("columns", &columns, py::arg("begin"), py::arg("width"),
           "Returns neighbouring columns of a matrix, as a view.")
      .def("__dlpack__", &to_dlpack, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
           py::arg("copy") = py::none(),
           "Returns a view. The consumer's `stream` (None: the default stream; -1: none) waits for "
           "the work given so far to fusewire's streams on the device. Its reads must have ended "
           "when it releases the view.")
      .def("__dlpack_device__", &dlpack_device)
      .def_property_readonly("shape", &shape_tuple)
      .def_property_readonly("dtype", [](const Tensor& t) { return name_of(t.dtype); })
      .def_property_readonly("device", [](const Tensor& t) { return t.device.text(); })
      .def_property_readonly("nbytes", &Tensor::bytes)
      .def("__repr__", [](const Tensor& t) {
        return std::string("Tensor(") + name_of(t.dtype) + t.shape.text() + ", " + t.device.text() +
               ")";
      });
  m.def(
      "empty",
      [](const std::vector<int64_t>& shape, std::string_view dtype, std::string_view tag,
         const Stream& stream) {
        return allocate_tensor(default_allocator(stream.device), shape_of(shape),
                               dtype_named(dtype), tag, stream);
      },
      py::arg("shape"), py::arg("dtype") = "float32", py::arg("tag") = "output",
      py::arg_v("stream", Stream{}, "Stream()"),
      "Returns a dense tensor from the process's allocator, not initialised.");
  m.def(
      "matrix",
      [](int64_t rows, int64_t cols, std::string_view dtype, std::string_view tag,
         const Stream& stream) {
        const DType type = dtype_named(dtype);
        const Shape padded = {rows, kernels_for(stream.device, type).row_stride(cols)};
        return allocate_tensor(default_allocator(stream.device), padded, type, tag, stream)
            .columns(0, cols);
      },
      py::arg("rows"), py::arg("cols"), py::arg("dtype") = "float32", py::arg("tag") = "output",
      py::arg_v("stream", Stream{}, "Stream()"),
      "Returns a matrix with the row stride that the kernels prefer, not initialised.");
  m.def("upload", &upload, py::arg("host"), py::arg("tag") = "input",
        py::arg_v("stream", Stream{}, "Stream()"),
        "Returns the tensor in the memory of the stream's device: itself on the CPU, otherwise a "
        "copy.");
  m.def("write", &write, py::arg("to"), py::arg("source"),
        py::arg_v("stream", Stream{}, "Stream()"),
        "Copies from the host or the stream's device into existing memory.");
  m.def("download", &download, py::arg("tensor"), py::arg_v("stream", Stream{}, "Stream()"),
        py::call_guard<py::gil_scoped_release>(),
        "Returns the tensor on the CPU, after the stream's work so far: itself there, otherwise a "
        "copy.");
  py::class_<Readback>(m, "Readback",
                       "A copy of a dense tensor to the host, of its values after the stream's "
                       "work so far.")
      .def(py::init<const Tensor&, const Stream&>(), py::arg("tensor"),
           py::arg_v("stream", Stream{}, "Stream()"))
      .def("wait", &Readback::wait, py::call_guard<py::gil_scoped_release>(),
           "Waits for the values and returns them on the CPU. Does not wait for later work of the "
           "stream.");
}

}  // namespace fusewire
