// The Python module of the kernel library, `fusewire._C`. Only fusewire.kernels imports it.
#include "core/error.h"
#include "python/register.h"

namespace fusewire {
namespace {

namespace py = pybind11;

// Registers the kinds of errors as Python types: Error, a RuntimeError, and two subclasses. The
// module owns them.
void register_errors(py::module_& m) {
  static const py::handle error = py::exception<Error>(m, "Error", PyExc_RuntimeError).release();
  // It is also a MemoryError, as numpy's is, so that one `except` catches both.
  static const py::handle out_of_memory =
      py::exception<Error>(m, "OutOfMemory", py::make_tuple(error, py::handle(PyExc_MemoryError)))
          .release();
  static const py::handle device_error = py::exception<Error>(m, "DeviceError", error).release();
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& caught) {
      switch (caught.kind()) {
        case ErrorKind::kInvalid:
          return py::set_error(error, caught.what());
        case ErrorKind::kOutOfMemory:
          return py::set_error(out_of_memory, caught.what());
        case ErrorKind::kDevice:
          return py::set_error(device_error, caught.what());
      }
    }
  });
}

}  // namespace
}  // namespace fusewire

PYBIND11_MODULE(_C, m) {
  m.doc() = "fusewire's kernel library: fused Transformer layers on packed batches.";
  fusewire::register_errors(m);
  fusewire::register_stream(m);
  fusewire::register_tensor(m);
  fusewire::register_memory(m);
  fusewire::register_ops(m);
  fusewire::register_layers(m);
  fusewire::register_training(m);
  fusewire::register_beams(m);
  fusewire::register_beam_pages(m);
  fusewire::register_token_history(m);
  fusewire::register_runtime(m);
}
