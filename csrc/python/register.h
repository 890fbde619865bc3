// Registers the parts of the module, each defined in its own file.
#pragma once

#include <pybind11/pybind11.h>

namespace fusewire {

void register_stream(pybind11::module_& m);
void register_tensor(pybind11::module_& m);
void register_memory(pybind11::module_& m);
void register_ops(pybind11::module_& m);
void register_layers(pybind11::module_& m);
void register_training(pybind11::module_& m);
void register_beams(pybind11::module_& m);
void register_beam_pages(pybind11::module_& m);
void register_token_history(pybind11::module_& m);
void register_runtime(pybind11::module_& m);

}  // namespace fusewire
