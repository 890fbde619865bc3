// Makes weights of 4-bit elements, which come with their scales and zero points: nothing is
// quantised here.
#include <vector>

#include "core/allocator.h"
#include "core/check.h"
#include "core/kernels.h"
#include "core/raw_memory.h"
#include "core/runtime.h"
#include "ops/linear.h"

namespace fusewire {

namespace {

constexpr int64_t kLeastGroup = 32;  // and the granularity of in_features

bool power_of_two(int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

void check_order(const Tensor& order, int64_t inputs) {
  const Stream host;
  const Check check("Linear.of_int4", host);
  Dim in("in_features", inputs);
  check.is("order", order, DType::kInt32, {&in});
  std::vector<bool> found(static_cast<size_t>(inputs));
  for (int64_t i = 0; i < inputs; ++i) {
    const int32_t input = order.as<int32_t>()[i];
    check.require(input >= 0 && input < inputs && !found[static_cast<size_t>(input)], "order[", i,
                  "]: got ", input, ", wanted each of 0..", inputs - 1, " once");
    found[static_cast<size_t>(input)] = true;
  }
}

}  // namespace

Linear Linear::of_int4(const Tensor& codes, const Tensor& scales, const Tensor* zeros,
                       const Tensor* bias, const Stream& stream, Format format,
                       const Tensor* order) {
  const Stream source = codes.device.type == DeviceType::kCpu ? Stream{} : stream;
  Check check("Linear.of_int4", source);
  Dim out("out_features"), half("in_features / 2"), groups("groups");
  check.is("codes", codes, DType::kUInt8, {&out, &half});
  check.is("scales", scales, DType::kFloat32, {&out, &groups});
  if (zeros) check.is("zeros", *zeros, DType::kUInt8, {&out, &groups});
  for (const Tensor* each : {&codes, &scales, zeros}) {
    if (each) check.contiguous("codes, scales and zeros", *each);
  }
  if (bias) check.floats("bias", *bias, {&out});
  const int64_t in = 2 * half.size, group = groups.size > 0 ? in / groups.size : 0;
  check.require(in % kLeastGroup == 0, "in_features: got ", in, ", wanted a multiple of ",
                kLeastGroup, "; dequantise the weight");
  check.require(groups.size == 1 ||
                    (group >= kLeastGroup && power_of_two(group) && group * groups.size == in),
                "groups: got ", groups.size, " of ", in,
                " inputs, wanted 1, or groups of a power of "
                "two, at least ",
                kLeastGroup, "; dequantise the weight");
  if (order) check_order(*order, in);

  Linear linear;
  Weight& weight = linear.weight_;
  weight.format = format;
  weight.out_features = out.size;
  weight.in_features = in;
  weight.group = groups.size == 1 ? 0 : group;
  const CurrentDevice current(stream.device);
  // 4-bit elements are packed in the same way for every dtype that has kernels.
  const DType computed = stream.device.type == DeviceType::kCpu ? DType::kFloat32 : DType::kFloat16;
  const GemmKernels* gemm = kernels_for(stream.device, computed).gemm(format);
  check.require(gemm && gemm->int4_scales_bytes, "format: got ", name_of(format), " on ",
                stream.device.text(), ", wanted one of 4 bits that it has kernels for");
  CachingAllocator& allocator = default_allocator(stream.device);
  const auto held = [&](size_t bytes) {
    linear.bytes_ += bytes;
    return allocator.allocate(bytes, "weights", stream);
  };
  linear.packed_ = true;
  weight.data = held(gemm->packed_bytes(out.size, in));
  const size_t scales_bytes = gemm->int4_scales_bytes(out.size, in, weight.group);
  weight.scales = held(scales_bytes);
  if (zeros && gemm->features.zeros) weight.zeros = held(scales_bytes);
  if (order) {
    weight.order = held(order->bytes());
    runtime(stream.device.type).copy_in(weight.order.get(), order->data, order->bytes(), stream);
  }
  PackArguments a{weight.data.get(), codes.data, out.size, in};
  a.scales = static_cast<float*>(weight.scales.get());
  a.given = scales.as<float>();
  a.zeros = zeros ? zeros->as<uint8_t>() : nullptr;
  a.packed_zeros = static_cast<float*>(weight.zeros.get());
  a.group = weight.group;
  gemm->pack(a, stream);
  if (bias) {
    linear.copies_bias_ = true;
    linear.bias_ = held(bias->bytes());
    linear.fill_bias(*bias, stream);
  }
  return linear;
}

}  // namespace fusewire
