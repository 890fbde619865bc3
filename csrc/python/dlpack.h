// DLPack exchange for Tensor (https://dmlc.github.io/dlpack, structure version 0.8).
#pragma once

#include <pybind11/pybind11.h>

#include "core/tensor.h"

namespace fusewire {

// Exports a view. `stream` is the consumer's, as numbered by the array API standard: it waits for
// all work given so far to fusewire's streams on the device. None is the default stream, -1 does
// not wait.
pybind11::capsule to_dlpack(const Tensor& tensor, const pybind11::object& stream,
                            const pybind11::object& max_version, const pybind11::object& dl_device,
                            const pybind11::object& copy);
pybind11::tuple dlpack_device(const Tensor& tensor);
Tensor from_dlpack(const pybind11::object& source);

}  // namespace fusewire
