// The activation functions that a layer can have.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace fusewire {

// gelu_erf is the exact GELU (Hendrycks & Gimpel 2016, eq. 1), gelu_tanh its tanh approximation.
enum class Activation : uint8_t { kNone, kGeluErf, kGeluTanh, kRelu, kSilu, kTanh };

inline Activation activation_named(std::string_view name) {
  constexpr std::string_view kNames[] = {"none", "gelu_erf", "gelu_tanh", "relu", "silu", "tanh"};
  for (int i = 0; i < 6; ++i) {
    if (name == kNames[i]) return static_cast<Activation>(i);
  }
  fail("activation: got '", name, "', wanted none, gelu_erf, gelu_tanh, relu, silu or tanh");
}

}  // namespace fusewire
