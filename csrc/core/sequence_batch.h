// Where each sequence of a packed matrix [tokens, ...] begins and ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/tensor.h"

namespace fusewire {

class SequenceBatch {
 public:
  // cu_seqlens int32[sequences + 1]: 0, then the running sum of lengths, each at least 1.
  explicit SequenceBatch(Tensor cu_seqlens) : cu_seqlens_(std::move(cu_seqlens)) {
    if (cu_seqlens_.dtype != DType::kInt32 || cu_seqlens_.shape.rank() != 1 ||
        cu_seqlens_.shape[0] < 2) {
      fail("cu_seqlens: got ", name_of(cu_seqlens_.dtype), cu_seqlens_.shape.text(),
           ", wanted int32[sequences + 1] with at least one sequence");
    }
    const int32_t* offsets = begin();
    if (offsets[0] != 0) fail("cu_seqlens[0]: got ", offsets[0], ", wanted 0");
    for (int64_t i = 0; i < sequences(); ++i) {
      const int64_t length = static_cast<int64_t>(offsets[i + 1]) - offsets[i];
      if (length < 1)
        fail("cu_seqlens: sequence ", i, " got length ", length, ", wanted 1 or more");
      max_seqlen_ = std::max(max_seqlen_, length);
    }
  }

  int64_t sequences() const { return cu_seqlens_.shape[0] - 1; }
  int64_t tokens() const { return begin()[sequences()]; }
  int64_t max_seqlen() const { return max_seqlen_; }
  const int32_t* begin() const { return cu_seqlens_.as<int32_t>(); }

 private:
  Tensor cu_seqlens_;
  int64_t max_seqlen_ = 0;
};

}  // namespace fusewire
