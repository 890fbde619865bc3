#include "train/linear.h"

#include "core/allocator.h"
#include "core/error.h"
#include "core/runtime.h"
#include "ops/ops.h"

namespace fusewire::train {
namespace {

// Returns a vector as a matrix of one column.
Tensor column(const Tensor& vector) {
  return {vector.data, {vector.shape[0], 1}, vector.dtype, vector.device};
}

}  // namespace

Linear::Linear(Parameter weight, std::optional<Parameter> bias, bool transposed,
               std::optional<Tensor> rows)
    : weight_(weight), bias_(bias), transposed_(transposed), rows_(std::move(rows)) {
  if (weight_.shape.rank() != 2) {
    fail("Linear: weight: got ", weight_.shape.text(), ", wanted a matrix");
  }
  in_features_ = weight_.shape[transposed ? 0 : 1];
  out_features_ = weight_.shape[transposed ? 1 : 0];
  if (bias_ && bias_->shape != Shape{out_features_}) {
    fail("Linear: bias: got ", bias_->shape.text(), ", wanted [", out_features_,
         "], the weight's out_features");
  }
  if (rows_ &&
      (transposed_ || rows_->dtype != DType::kInt64 || rows_->shape != Shape{out_features_})) {
    fail("Linear: rows: got ", name_of(rows_->dtype), rows_->shape.text(), ", wanted int64[",
         out_features_, "], of a weight that is not transposed");
  }
}

void Linear::expect_within(const Tensor& flat) const {
  train::expect_within(weight_, flat);
  if (bias_) train::expect_within(*bias_, flat);
}

const fusewire::Linear& Linear::packed(Packed& panels, bool bias, bool transposed,
                                       const Pass& pass) const {
  const DType dtype = pass.parameters.dtype;
  const bool known = panels.linear && panels.dtype == dtype;
  if (known && panels.version == pass.version) return *panels.linear;
  Tensor weight = weight_.of(pass.parameters);
  Tensor biases = bias && bias_ ? bias_->of(pass.parameters) : Tensor();
  if (rows_) {
    const Ordered& there = ordered(pass);
    weight.data = there.weight.get();
    weight.owner = there.weight;
    biases.data = there.bias.get();
    biases.owner = there.bias;
  }
  const Tensor* const given = bias && bias_ ? &biases : nullptr;
  if (known && panels.linear->refreshes_from(weight, given)) {
    panels.linear->refresh(weight, given, pass.stream);
  } else {
    panels.linear = std::make_unique<fusewire::Linear>(weight, given, pass.stream, transposed);
  }
  panels.dtype = dtype;
  panels.version = pass.version;
  return *panels.linear;
}

const Linear::Ordered& Linear::ordered(const Pass& pass) const {
  const DType dtype = pass.parameters.dtype;
  Ordered& there = ordered_[dtype];
  const bool known = there.weight != nullptr;
  if (known && there.version == pass.version) return there;
  Stream stream = pass.stream;
  stream.recording = false;  // a dry run packs weights too
  Runtime& device = runtime(stream.device.type);
  const auto order = [&](std::shared_ptr<void>& to, const Tensor& stored, const Tensor& matrix) {
    CachingAllocator& allocator = default_allocator(stream.device);
    if (!known) to = allocator.allocate(stored.bytes(), "training", stream);
    const auto staged = allocator.allocate(stored.bytes(), "training", stream);
    const Tensor made(staged.get(), matrix.shape, dtype, stream.device);
    ops::gather_rows(made, matrix, *rows_, stream);
    // Kernels may load weights before they wait for other kernels, but not before copies have ended
    // (cuda/launch.h).
    device.copy(to.get(), made.data, stored.bytes(), stream);
  };
  const Tensor weight = weight_.of(pass.parameters);
  order(there.weight, weight, weight);
  if (bias_) {
    const Tensor bias = bias_->of(pass.parameters);
    order(there.bias, bias, column(bias));
  }
  there.version = pass.version;
  return there;
}

void Linear::forward(const Tensor& y, const Tensor& x, Activation activation,
                     const Pass& pass) const {
  ops::linear(y, x, packed(forward_, true, transposed_, pass), activation, pass.stream);
}

void Linear::forward_add(const Tensor& y, const Tensor& x, const Tensor& residual,
                         const Pass& pass) const {
  ops::linear_add(y, x, packed(forward_, true, transposed_, pass), residual, pass.stream);
}

std::optional<Tensor> Linear::bias_gradient(const Pass& pass) const {
  if (!bias_ || rows_) return std::nullopt;
  return bias_->of(pass.gradients.flat);
}

void Linear::backward_bias(const Tensor& dy, const Pass& pass) const {
  if (!bias_) return;
  const Gradients& g = pass.gradients;
  const Tensor dbias = bias_->of(g.flat);
  if (!rows_) return ops::column_sums(dbias, dy, g.accumulate, pass.stream);
  const ScratchTensor sums = pass.scratch.tensor({out_features_});
  ops::column_sums(sums, dy, false, pass.stream);
  ops::embed_backward(column(dbias), *rows_, column(sums), 1, g.accumulate, pass.stream);
}

void Linear::backward_weight(const Tensor& dy, const Tensor& x, const Pass& pass) const {
  const Gradients& g = pass.gradients;
  const bool frozen = g.frozen && g.frozen->count(weight_.offset);
  const Tensor dweight = weight_.of(g.flat);
  if (rows_) {
    const ScratchTensor ordered = pass.scratch.tensor(shape());  // part of the plan, frozen or not
    if (frozen) return;
    ops::linear_backward_weight(ordered, dy, x, false, pass.stream);
    ops::embed_backward(dweight, *rows_, ordered, 1, g.accumulate, pass.stream);
  } else if (!frozen) {
    const Tensor &rows = transposed_ ? x : dy, &cols = transposed_ ? dy : x;
    ops::linear_backward_weight(dweight, rows, cols, g.accumulate, pass.stream);
  }
}

void Linear::backward_parameters(const Tensor& dy, const Tensor& x, const Pass& pass) const {
  backward_bias(dy, pass);
  backward_weight(dy, x, pass);
}

void Linear::backward_input(const Tensor& dx, const Tensor& dy, const Tensor* residual,
                            const Pass& pass) const {
  const fusewire::Linear& transpose = packed(backward_, false, !transposed_, pass);
  if (residual) {
    ops::linear_add(dx, dy, transpose, *residual, pass.stream);
  } else {
    ops::linear(dx, dy, transpose, Activation::kNone, pass.stream);
  }
}

}  // namespace fusewire::train
