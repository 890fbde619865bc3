#include "train/norm.h"

#include <cstring>

#include "core/allocator.h"
#include "core/runtime.h"
#include "ops/ops.h"

namespace fusewire::train {
namespace {

constexpr size_t kAlignment = 256;

std::vector<char> ones(int64_t count, DType dtype) {
  const float one = 1.0f;
  const uint16_t half = dtype == DType::kFloat16 ? 0x3c00 : 0x3f80;
  const void* const bits = dtype == DType::kFloat32 ? static_cast<const void*>(&one) : &half;
  const size_t size = size_of(dtype);
  std::vector<char> bytes(static_cast<size_t>(count) * size);
  for (size_t at = 0; at < bytes.size(); at += size) std::memcpy(bytes.data() + at, bits, size);
  return bytes;
}

}  // namespace

Tensor OnePlus::of(const Parameter& parameter, const Pass& pass) {
  const DType dtype = pass.parameters.dtype;
  const Stream& stream = pass.stream;
  if (stream.recording) return {nullptr, parameter.shape, dtype, stream.device};
  const int64_t count = parameter.shape.elements();
  const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
  const size_t apart = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  Runtime& device = runtime(stream.device.type);
  const bool known = block_ && dtype_ == dtype;
  if (!known) {
    block_ = default_allocator(stream.device).allocate(3 * apart, "training", stream);
    device.copy_in(block_.get(), ones(count, dtype).data(), bytes, stream);
    dtype_ = dtype;
  }
  const auto row = [&](size_t number) {
    char* const begin = static_cast<char*>(block_.get()) + number * apart;
    return Tensor(begin, {1, count}, dtype, stream.device);
  };
  const Tensor weight = row(2);
  if (!known || version_ != pass.version) {
    const Tensor difference = parameter.of(pass.parameters), one = row(0), sum = row(1);
    ops::dropout_add(sum, nullptr, {difference.data, {1, count}, dtype, stream.device}, &one, 0, 0,
                     0, false, stream);
    // Kernels may load weights before they wait for other kernels, but not before copies have ended
    // (cuda/launch.h).
    device.copy(weight.data, sum.data, bytes, stream);
    version_ = pass.version;
  }
  return {weight.data, parameter.shape, dtype, stream.device};
}

Tensor Norm::weights(const Pass& pass) const {
  return one_plus ? one_plus->of(weight, pass) : weight.of(pass.parameters);
}

void Norm::forward(const Tensor& y, const Tensor& x, const Pass& pass) const {
  std::optional<Tensor> added;
  if (bias) added = bias->of(pass.parameters);
  layers::Norm{kind, weights(pass), added, eps}.apply(y, x, pass.stream);
}

void Norm::forward_add(const Tensor& y, const Tensor& x, const Tensor& residual,
                       const Pass& pass) const {
  ops::rms_norm_add(y, x, residual, weights(pass), eps, pass.stream);
}

void Norm::backward(const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor* residual,
                    const Pass& pass) const {
  const Gradients& g = pass.gradients;
  const Tensor scale = weights(pass), dscale = weight.of(g.flat);
  if (kind == layers::Norm::Kind::kRmsNorm) {
    ops::rms_norm_backward(dx, dscale, dy, x, scale, residual, eps, g.accumulate, pass.stream);
    return;
  }
  const Tensor dbias = bias ? bias->of(g.flat) : Tensor();
  ops::layer_norm_backward(dx, dscale, bias ? &dbias : nullptr, dy, x, scale, residual, eps,
                           g.accumulate, pass.stream);
}

void Norm::drop_and_forward(const Tensor& y, const Tensor& sum, const Tensor& x,
                            const Dropout& dropout, const Pass& pass) const {
  const Tensor added = bias ? bias->of(pass.parameters) : Tensor();
  ops::drop_add_and_norm(y, sum, sum, x, weights(pass), bias ? &added : nullptr, eps, dropout,
                         pass.stream);
}

void Norm::backward_and_drop(const Tensor& d, const Tensor& sum, const Tensor* dbias,
                             const Dropout& dropout, const Pass& pass) const {
  const Gradients& g = pass.gradients;
  const Tensor own = bias ? bias->of(g.flat) : Tensor();
  ops::norm_and_drop_backward(d, sum, weight.of(g.flat), bias ? &own : nullptr, dbias, d, sum,
                              weights(pass), eps, dropout, g.accumulate, pass.stream);
}

void Norm::forward_heads(const Tensor& x, const Pass& pass) const {
  ops::rms_norm_heads(x, weights(pass), eps, pass.stream);
}

void Norm::backward_heads(const Tensor& dx, const Tensor& x, const Pass& pass) const {
  const Gradients& g = pass.gradients;
  ops::rms_norm_heads_backward(dx, weight.of(g.flat), x, weights(pass), eps, g.accumulate,
                               pass.stream);
}

void Norm::expect_within(const Tensor& flat) const {
  train::expect_within(weight, flat);
  if (bias) train::expect_within(*bias, flat);
}

}  // namespace fusewire::train
