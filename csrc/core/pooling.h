// How the tokens of a sequence are pooled into one vector.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace fusewire {

enum class Pooling : uint8_t { kCls, kMean, kMax, kLast };

inline Pooling pooling_named(std::string_view name) {
  constexpr std::string_view kNames[] = {"cls", "mean", "max", "last"};
  for (int i = 0; i < 4; ++i) {
    if (name == kNames[i]) return static_cast<Pooling>(i);
  }
  fail("pooling: got '", name, "', wanted cls, mean, max or last");
}

}  // namespace fusewire
