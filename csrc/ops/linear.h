// A weight packed for the target's matrix products, with its bias.
#pragma once

#include <optional>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "core/weight.h"

namespace fusewire {

class Linear {
 public:
  // weight [out_features, in_features], bias [out_features] or null, both in the memory of the
  // stream's device or both in the host's, in the dtype that is computed in. They are copied, but
  // for a weight on the device that its GEMM reads as it lies: that is shared (an embedding that is
  // also a head, parameters that are trained), and the bias with it.
  // `transposed`: the weight is stored as [in_features, out_features] (GPT-2's Conv1D; and of a
  // weight W[out, in] it is the product dy . W, the gradient of the input).
  // `format`: that the weight is packed in, the tensor's own if there is none. `scales`
  // float32[out_features], where the weight is, for a format that has them; null: of the weight. A
  // uint8 weight is the bytes of the format's numbers, whose scales are given. Of
  // float8_e4m3_blocks it always is, and the scales are [out_features / 128, in_features / 128],
  // rounded up. `input_scale`: with which what a float8_e4m3 weight is multiplied by is quantised
  // (448 times it and more become that); 0: each row by its own largest magnitude.
  Linear(const Tensor& weight, const Tensor* bias, const Stream& stream, bool transposed = false,
         std::optional<Format> format = std::nullopt, const Tensor* scales = nullptr,
         float input_scale = 0);

  // A weight of 4-bit numbers: codes uint8[out_features, in_features / 2], the first of two in the
  // low bits, stand for scales * (code - zeros), float32 and uint8 [out_features, groups] of
  // neighbouring inputs; zeros null: 8. Groups are a power of two of inputs, at least 32, or all of
  // them. `order` int32[in_features], of the host: which input of what it is multiplied by belongs
  // to each of these inputs; null: they are in order. `format`: int4, or w4a8, of which what it is
  // multiplied by is rounded to int8, each row by its own largest magnitude.
  static Linear of_int4(const Tensor& codes, const Tensor& scales, const Tensor* zeros,
                        const Tensor* bias, const Stream& stream, Format format = Format::kInt4,
                        const Tensor* order = nullptr);

  // Takes other numbers of the same shapes in the place of those there were, with scales of their
  // own. Nothing may be using them meanwhile.
  void refresh(const Tensor& weight, const Tensor* bias, const Stream& stream);
  // Whether `refresh` may get them: what is shared is written where it is.
  bool refreshes_from(const Tensor& weight, const Tensor* bias) const;

  // The same weight, in the same memory, with this bias.
  Linear with_bias(const Tensor& bias, const Stream& stream) const;

  int64_t in_features() const { return weight_.in_features; }
  int64_t out_features() const { return weight_.out_features; }
  Shape shape() const { return {out_features(), in_features()}; }
  size_t bytes() const { return bytes_; }
  const Weight& weight() const { return weight_; }
  const void* bias() const { return bias_.get(); }
  // Whether its products activate rows as they quantise them, so that the product that makes these
  // should not.
  bool activates() const { return activates_; }

 private:
  Linear() = default;

  void fill(const Tensor& weight, const Tensor* scales, const Stream& stream);
  void fill_bias(const Tensor& bias, const Stream& stream);

  Weight weight_;
  std::shared_ptr<void> bias_;
  bool activates_ = false;
  // Else the memory is that of the tensor it was made with.
  bool packed_ = false, copies_bias_ = false;
  size_t bytes_ = 0;
};

// The formats of weights for which the stream's device has products that compute in dtype.
std::vector<const char*> weight_formats(DType dtype, const Stream& stream);

// The numbers of rows, in ascending order, that a product is to be run with on a stream that is
// tuning, so that its kernel is chosen for every number up to max_rows; empty where there is no
// choice.
std::vector<int64_t> rows_to_tune(int64_t max_rows, DType dtype, const Stream& stream);

}  // namespace fusewire
