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
  weight_.format = format_of(weight.dtype);
  weight_.out_features = out.size;
  weight_.in_features = in.size;

  const CurrentDevice current(stream.device);
  const GemmKernels* gemm = kernels_for(stream.device, weight.dtype).gemm(weight_.format);
  check.require(gemm, "weight: got ", name_of(weight_.format), ", for which ", stream.device.text(),
                " has no kernels; convert it to another format");
  CachingAllocator& allocator = default_allocator(stream.device);
  const bool begins_a_line = reinterpret_cast<uintptr_t>(weight.data) % kLine == 0;
  if (!on_host && weight.owner && begins_a_line && gemm->packing_copies) {
    weight_.data = std::shared_ptr<void>(weight.owner, weight.data);
  } else {
    bytes_ = gemm->packed_bytes(out.size, in.size);
    weight_.data = allocator.allocate(bytes_, "weights", stream);
    gemm->pack(weight_.data.get(), weight.data, out.size, in.size, stream);
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

std::vector<int64_t> rows_to_tune(int64_t max_rows, DType dtype, const Stream& stream) {
  const GemmKernels* gemm = kernels_for(stream.device, dtype).gemm(format_of(dtype));
  return gemm ? row_buckets(*gemm, max_rows) : std::vector<int64_t>();
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
  const Weight& weight = linear.weight();
  const GemmKernels* gemm = kernels_for(stream.device, check.dtype()).gemm(weight.format);
  check.require(gemm, "x: got ", name_of(x.dtype), ", wanted the weight's ",
                name_of(weight.format));
  check.require(out.data != x.data || stream.recording, "out: got x's memory, wanted its own");
  GemmArguments a;
  a.out = out.data;
  a.out_stride = out.row_stride;
  a.x = {x.data, x.row_stride};
  a.weight = {weight.data.get(),  in.size,     false, weight.scales.get(),
              weight.zeros.get(), weight.group};
  a.m = tokens.size;
  a.n = out_features.size;
  a.k = in.size;
  a.bias = linear.bias();
  a.activation = activation;
  if (residual) {
    a.residual = residual->data;
    a.residual_stride = residual->row_stride;
  }
  check_features(*gemm, a, stream.device);
  dispatch(check, stream, tokens.size, [&](const Kernels&) { gemm->run(a, stream); });
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
