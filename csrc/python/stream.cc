// Binds streams, devices and captured graphs.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/runtime.h"
#include "python/device.h"
#include "python/register.h"

namespace fusewire {
namespace {

namespace py = pybind11;

// A graph captured on a stream. Its owner must keep what it uses alive.
struct Graph {
  std::shared_ptr<void> recorded;

  void replay(const Stream& stream) const {
    runtime(stream.device.type).replay(recorded.get(), stream);
  }
};

Graph capture(const Stream& stream, const py::function& work) {
  Runtime& device = runtime(stream.device.type);
  device.begin_capture(stream);
  try {
    work();
  } catch (...) {
    device.abandon_capture(stream);
    throw;
  }
  return {device.end_capture(stream)};
}

std::vector<std::pair<std::string, std::string>> devices() {
  std::vector<std::pair<std::string, std::string>> found;
  for (DeviceType type : {DeviceType::kCpu, DeviceType::kCuda}) {
    if (!has_runtime(type)) continue;
    Runtime& of_type = runtime(type);
    for (int i = 0; i < of_type.device_count(); ++i) {
      found.emplace_back(Device{type, i}.text(), of_type.device_name(i));
    }
  }
  return found;
}

}  // namespace

void register_stream(py::module_& m) {
  py::class_<Stream, std::shared_ptr<Stream>>(
      m, "Stream", "A sequence of work on a device. On the CPU work is done when a call returns.")
      .def(py::init([](const std::string& device) { return make_stream(device_named(device)); }),
           py::arg("device") = "cpu")
      .def_static(
          "borrowed",
          [](const std::string& device, uintptr_t handle) {
            return std::make_shared<Stream>(
                Stream{device_named(device), reinterpret_cast<void*>(handle)});
          },
          py::arg("device"), py::arg("handle"),
          "Returns a stream for an existing one, such as torch's, by the device's own handle. That "
          "stream must live while work is given to it and memory that was allocated for it is in "
          "use.")
      .def_property_readonly("device", [](const Stream& s) { return s.device.text(); })
      .def_property_readonly(
          "handle", [](const Stream& s) { return reinterpret_cast<uintptr_t>(s.handle); },
          "The device's own handle (cudaStream_t), 0 on the CPU.")
      .def_property_readonly("can_capture",
                             [](const Stream& s) { return runtime(s.device.type).can_capture(); })
      .def_readwrite("tuning", &Stream::tuning,
                     "Whether products that several kernels can compute are timed when they are "
                     "first seen, as while a model loads.")
      .def(
          "synchronize", [](const Stream& s) { runtime(s.device.type).synchronize(s); },
          py::call_guard<py::gil_scoped_release>(), "Waits for the work given so far.");
  py::class_<Graph>(m, "Graph", "A graph that `capture` recorded.")
      .def("replay", &Graph::replay, py::arg("stream"), py::call_guard<py::gil_scoped_release>());
  m.def("capture", &capture, py::arg("stream"), py::arg("work"),
        "Captures the work that work() gives to the stream, without running it, and returns the "
        "graph. Its tensors and weights must keep their addresses for as long as the graph is "
        "replayed.");
  m.def("devices", &devices,
        "Returns (name, model) of every device that this build and machine have.");
  m.def(
      "cuda_built", [] { return has_runtime(DeviceType::kCuda); },
      "Returns whether this build has CUDA kernels.");
}

}  // namespace fusewire
