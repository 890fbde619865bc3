// The boundaries of the sequences in a packed matrix [tokens, ...].
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/tensor.h"

namespace fusewire {

class SequenceBatch {
 public:
  // cu_seqlens int32[sequences + 1], on the host: 0, then the cumulative sum of the lengths, each
  // at least 1. `device_offsets` is a copy in the memory of the device whose kernels read it; if it
  // is left out, the kernels run on the host.
  explicit SequenceBatch(Tensor cu_seqlens, Tensor device_offsets = {})
      : host_(std::move(cu_seqlens)), device_(std::move(device_offsets)) {
    if (host_.dtype != DType::kInt32 || host_.shape.rank() != 1 || host_.shape[0] < 2 ||
        host_.device.type != DeviceType::kCpu) {
      fail("cu_seqlens: got ", name_of(host_.dtype), host_.shape.text(), " on ",
           host_.device.text(),
           ", wanted int32[sequences + 1] on the cpu with at least one sequence");
    }
    const int32_t* offsets = begin();
    if (offsets[0] != 0) fail("cu_seqlens[0]: got ", offsets[0], ", wanted 0");
    sequences_ = host_.shape[0] - 1;
    for (int64_t i = 0; i < sequences_; ++i) {
      const int64_t length = static_cast<int64_t>(offsets[i + 1]) - offsets[i];
      if (length < 1)
        fail("cu_seqlens: sequence ", i, " got length ", length, ", wanted 1 or more");
      max_seqlen_ = std::max(max_seqlen_, length);
    }
    tokens_ = offsets[sequences_];
    if (!device_.data) device_ = host_;
    if (device_.dtype != DType::kInt32 || !(device_.shape == host_.shape)) {
      fail("device_offsets: got ", name_of(device_.dtype), device_.shape.text(), ", wanted int32",
           host_.shape.text(), ", a copy of cu_seqlens");
    }
  }

  // Returns a batch that is captured once and replayed for many batches (a CUDA graph): the offsets
  // are read from `device_offsets` int32[sequences + 1] at every replay; tokens, sequences and
  // max_seqlen are upper bounds. A batch of fewer sequences repeats its last offset.
  static SequenceBatch bucket(Tensor device_offsets, int64_t tokens, int64_t max_seqlen) {
    if (device_offsets.dtype != DType::kInt32 || device_offsets.shape.rank() != 1 ||
        device_offsets.shape[0] < 2 || tokens < 1 || max_seqlen < 1) {
      fail("SequenceBatch.bucket: got ", name_of(device_offsets.dtype), device_offsets.shape.text(),
           ", tokens ", tokens, ", max_seqlen ", max_seqlen,
           ", wanted int32[sequences + 1] and at least one token");
    }
    SequenceBatch batch;
    batch.sequences_ = device_offsets.shape[0] - 1;
    batch.device_ = std::move(device_offsets);
    batch.tokens_ = tokens;
    batch.max_seqlen_ = max_seqlen;
    return batch;
  }

  // Returns sequences `first` to `end` - 1 of a batch. Their rows stay in place in the packed
  // matrix: offsets count from its beginning, and tokens() is the end of the last sequence.
  SequenceBatch section(int64_t first, int64_t end) const {
    const auto offsets = [&](const Tensor& all) {
      Tensor some = all.first(end - first + 1);
      some.data = all.as<int32_t>() + first;
      return some;
    };
    SequenceBatch batch;
    batch.host_ = offsets(host_);
    batch.device_ = offsets(device_);
    batch.sequences_ = end - first;
    batch.tokens_ = begin()[end];
    for (int64_t i = first; i < end; ++i) {
      batch.max_seqlen_ = std::max<int64_t>(batch.max_seqlen_, begin()[i + 1] - begin()[i]);
    }
    return batch;
  }

  int64_t sequences() const { return sequences_; }
  int64_t tokens() const { return tokens_; }
  int64_t max_seqlen() const { return max_seqlen_; }
  const Device& device() const { return device_.device; }
  const int32_t* begin() const { return host_.as<int32_t>(); }  // null for a bucket
  const int32_t* device_offsets() const { return device_.as<int32_t>(); }

  // Returns the number of tiles of `rows` tokens, of which none spans two sequences. For a bucket
  // it is an upper bound: each sequence ends in at most one partial tile.
  int64_t query_tiles(int64_t rows) const {
    if (!begin()) return std::min(tokens_, tokens_ / rows + sequences_);
    int64_t tiles = 0;
    for (int64_t i = 0; i < sequences_; ++i) {
      tiles += (begin()[i + 1] - begin()[i] + rows - 1) / rows;
    }
    return tiles;
  }

 private:
  SequenceBatch() = default;

  Tensor host_, device_;
  int64_t sequences_ = 0, tokens_ = 0, max_seqlen_ = 0;
};

}  // namespace fusewire
