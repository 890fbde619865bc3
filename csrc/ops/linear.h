// A weight packed for the target's GEMM, with its bias.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"

namespace fusewire {

class Linear {
 public:
  // weight [out_features, in_features], bias [out_features] or null, both in the memory of the
  // stream's device or both in the host's. They are copied, but for a weight on the device that its
  // GEMM reads as it lies: that is shared (an embedding that is also a head).
  Linear(const Tensor& weight, const Tensor* bias, const Stream& stream);

  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }
  size_t bytes() const { return bytes_; }
  DType dtype() const { return dtype_; }
  const void* packed() const { return packed_.get(); }
  const void* bias() const { return bias_.get(); }

 private:
  int64_t in_features_, out_features_;
  DType dtype_;
  size_t bytes_;
  std::shared_ptr<void> packed_, bias_;
};

}  // namespace fusewire
