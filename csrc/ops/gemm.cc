#include "core/allocator.h"
#include "core/runtime.h"
#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire {

constexpr uintptr_t kLine = 128;  // bytes: where kernels like rows to begin

Linear::Linear(const Tensor& weight, const Tensor* bias, const Stream& stream) {
  const bool on_host = weight.device.type == DeviceType::kCpu;
  const Stream source = on_host ? Stream{} : stream;
  Check check("Linear", source);
  Dim out("out_features"), in("in_features");
  check.floats("weight", weight, {&out, &in});
  check.contiguous("weight", weight);
  if (bias) check.floats("bias", *bias, {&out});
  out_features_ = out.size;
  in_features_ = in.size;
  dtype_ = weight.dtype;

  const CurrentDevice current(stream.device);
  const Kernels& kernels = kernels_for(stream.device, dtype_);
  CachingAllocator& allocator = default_allocator(stream.device);
  const bool begins_a_line = reinterpret_cast<uintptr_t>(weight.data) % kLine == 0;
  if (!on_host && weight.owner && begins_a_line && kernels.packing_copies()) {
    bytes_ = 0;
    packed_ = std::shared_ptr<void>(weight.owner, weight.data);
  } else {
    bytes_ = kernels.pack_weight_bytes(out.size, in.size);
    packed_ = allocator.allocate(bytes_, "weights", stream);
    kernels.pack_weight(packed_.get(), weight.data, out.size, in.size, stream);
  }
  if (bias) {
    bias_ = allocator.allocate(bias->bytes(), "weights", stream);
    Runtime& device = runtime(stream.device.type);
    if (on_host) {
      device.copy_in(bias_.get(), bias->data, bias->bytes(), stream);
    } else {
      device.copy(bias_.get(), bias->data, bias->bytes(), stream);
    }
    bytes_ += bias->bytes();
  }
}

namespace ops {
namespace {

void multiply(Check& check, const Tensor& out, const Tensor& x, const Linear& linear,
              Activation activation, const Tensor* residual, const Stream& stream) {
  Dim tokens("tokens"), in("in_features", linear.in_features());
  Dim out_features("out_features", linear.out_features());
  check.floats("x", x, {&tokens, &in});
  check.floats("out", out, {&tokens, &out_features});
  if (residual) check.floats("residual", *residual, {&tokens, &out_features});
  check.require(linear.dtype() == x.dtype, "x: got ", name_of(x.dtype), ", wanted the weight's ",
                name_of(linear.dtype()));
  check.require(out.data != x.data || stream.recording, "out: got x's memory, wanted its own");
  dispatch(check, stream, tokens.size, [&](const Kernels& kernels) {
    kernels.gemm(out.data, out.row_stride, x.data, x.row_stride, linear.packed(), linear.bias(),
                 residual ? residual->data : nullptr, residual ? residual->row_stride : 0,
                 tokens.size, out_features.size, in.size, activation, stream);
  });
}

}  // namespace

void linear(const Tensor& out, const Tensor& x, const Linear& linear, Activation activation,
            const Stream& stream) {
  Check check("linear", stream);
  multiply(check, out, x, linear, activation, nullptr, stream);
}

void linear_add(const Tensor& out, const Tensor& x, const Linear& linear, const Tensor& residual,
                const Stream& stream) {
  Check check("linear_add", stream);
  multiply(check, out, x, linear, Activation::kNone, &residual, stream);
}

}  // namespace ops
}  // namespace fusewire
