// Binds the CPU's instruction sets and threads.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/kernels.h"
#include "core/threads.h"
#include "python/register.h"

namespace fusewire {

void register_runtime(pybind11::module_& m) {
  namespace py = pybind11;
  m.def("cpu_targets", &cpu_targets,
        "Returns the instruction sets usable on this machine, slowest first.");
  m.def("cpu_target", &cpu_target, "Returns the instruction set in use.");
  m.def("set_cpu_target", &set_cpu_target, py::arg("name"),
        "Forces an instruction set. Raises Error if this machine cannot run it.");
  m.def("num_threads", &num_threads,
        "Returns the number of threads of the pool, including the caller.");
  m.def("set_num_threads", &set_num_threads, py::arg("threads"),
        "Sets the pool's size; 0 means every core this process may use.");
}

}  // namespace fusewire
