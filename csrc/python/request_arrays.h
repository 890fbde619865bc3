// Arrays for calls that serve many requests at once.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <vector>

#include "core/error.h"

namespace fusewire {

// An array of exactly this element type: nothing is converted.
template <class T>
using Array = pybind11::array_t<T, pybind11::array::c_style>;

template <class T>
pybind11::array_t<T> array_of(const std::vector<T>& values) {
  return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

template <class T>
void expect_all(const char* call, const std::vector<T*>& all) {
  for (const T* each : all) {
    if (!each) fail(call, ": got None in the place of a request, wanted none of it");
  }
}

}  // namespace fusewire
