// Converts Python strings to the library's enumerations.
#pragma once

#include <pybind11/pybind11.h>

#include "core/activation.h"
#include "core/pooling.h"

namespace pybind11::detail {

#define FUSEWIRE_STRING_CASTER(Type, named)                  \
  template <>                                                \
  struct type_caster<fusewire::Type> {                       \
    PYBIND11_TYPE_CASTER(fusewire::Type, const_name("str")); \
    bool load(handle source, bool) {                         \
      if (!isinstance<str>(source)) return false;            \
      value = fusewire::named(source.cast<std::string>());   \
      return true;                                           \
    }                                                        \
  };
FUSEWIRE_STRING_CASTER(Activation, activation_named)
FUSEWIRE_STRING_CASTER(Pooling, pooling_named)
#undef FUSEWIRE_STRING_CASTER

}  // namespace pybind11::detail
