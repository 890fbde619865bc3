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
  // weight [out_features, in_features] and bias [out_features], or null, are both in the memory of
  // the stream's device or both in the host's, in the dtype that is computed in. They are copied,
  // except for a weight on the device that its GEMM uses as it is stored. That is shared (an
  // embedding that is also a head, parameters that are trained), and so is its bias.
  // `transposed`: the weight is stored as [in_features, out_features] (GPT-2's Conv1D; for a weight
  // W[out, in] the product is then dy . W, the gradient of the input).
  // `format`: the format to pack the weight in, by default that of the tensor.
  // `scales` float32[out_features], in the same memory as the weight, for a format that has scales;
  // null: computed from the weight. A uint8 weight consists of the format's own bytes and needs
  // scales. For float8_e4m3_blocks it must be uint8, with scales [out_features / 128, in_features /
  // 128], rounded up.
  // `input_scale`: the scale that quantises the input of a float8_e4m3 weight (values beyond 448
  // times it saturate); 0: each row is scaled by its own largest magnitude.
  Linear(const Tensor& weight, const Tensor* bias, const Stream& stream, bool transposed = false,
         std::optional<Format> format = std::nullopt, const Tensor* scales = nullptr,
         float input_scale = 0);

  // Makes a Linear with a weight in 4 bits. codes uint8[out_features, in_features / 2], with the
  // first of two inputs in the low bits, stand for scales * (code - zeros). scales float32 and
  // zeros uint8 are [out_features, groups] for groups of neighbouring inputs; zeros null: 8. The
  // size of a group is a power of two, at least 32, or all inputs.
  // `order` int32[in_features], on the host: the index in x of each of the weight's inputs; null:
  // the same order.
  // `format`: int4, or w4a8, for which x is quantised to int8, with a scale per row from its
  // largest magnitude.
  static Linear of_int4(const Tensor& codes, const Tensor& scales, const Tensor* zeros,
                        const Tensor* bias, const Stream& stream, Format format = Format::kInt4,
                        const Tensor* order = nullptr);

  // Replaces the weight and bias by others of the same shapes, with their own scales. Nothing may
  // use them at the same time.
  void refresh(const Tensor& weight, const Tensor* bias, const Stream& stream);
  // Returns whether `refresh` accepts these tensors: shared memory is updated in place, so they
  // must be the shared ones.
  bool refreshes_from(const Tensor& weight, const Tensor* bias) const;

  // Returns a Linear with the same weight, in the same memory, and this bias.
  Linear with_bias(const Tensor& bias, const Stream& stream) const;

  int64_t in_features() const { return weight_.in_features; }
  int64_t out_features() const { return weight_.out_features; }
  Shape shape() const { return {out_features(), in_features()}; }
  size_t bytes() const { return bytes_; }
  const Weight& weight() const { return weight_; }
  const void* bias() const { return bias_.get(); }
  // Returns whether its products apply an activation while they quantise their input, so that the
  // product before them should not.
  bool activates() const { return activates_; }
  // Returns whether its products compute gated units in one pass.
  bool gates() const { return gates_; }

 private:
  Linear() = default;

  void fill(const Tensor& weight, const Tensor* scales, const Stream& stream);
  void fill_bias(const Tensor& bias, const Stream& stream);

  Weight weight_;
  std::shared_ptr<void> bias_;
  bool activates_ = false, gates_ = false;
  // false: the memory is that of the tensor it was made with
  bool packed_ = false, copies_bias_ = false;
  size_t bytes_ = 0;
};

// Returns the formats of weights for which the stream's device has products that compute in dtype.
std::vector<const char*> weight_formats(DType dtype, const Stream& stream);

// Returns the numbers of rows, in ascending order, that a product must be run with on a stream that
// is tuning, so that its kernel is chosen for every number up to max_rows; empty if there is no
// choice.
std::vector<int64_t> rows_to_tune(int64_t max_rows, DType dtype, const Stream& stream);

}  // namespace fusewire
