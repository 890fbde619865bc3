// The Python face of the kernel library: `fusewire._C`, imported by fusewire.kernels alone.
#include "core/error.h"
#include "python/register.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "fusewire's kernel library: fused Transformer layers on packed batches.";
  pybind11::register_exception<fusewire::Error>(m, "Error", PyExc_RuntimeError);
  fusewire::register_stream(m);
  fusewire::register_tensor(m);
  fusewire::register_memory(m);
  fusewire::register_ops(m);
  fusewire::register_layers(m);
  fusewire::register_runtime(m);
}
