// Element types. A target may have no kernels for fp16 or bf16; dispatching an op is then an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace fusewire {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16, kInt32, kInt64, kUInt8 };
inline constexpr int kDTypeCount = 6;

constexpr size_t size_of(DType dtype) {
  constexpr size_t kBytes[kDTypeCount] = {4, 2, 2, 4, 8, 1};
  return kBytes[static_cast<int>(dtype)];
}

constexpr const char* name_of(DType dtype) {
  constexpr const char* kNames[kDTypeCount] = {"float32", "float16", "bfloat16",
                                               "int32",   "int64",   "uint8"};
  return kNames[static_cast<int>(dtype)];
}

inline DType dtype_named(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name == name_of(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  fail("dtype: got '", name, "', wanted float32, float16, bfloat16, int32, int64 or uint8");
}

}  // namespace fusewire
