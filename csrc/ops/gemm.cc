#include <cmath>

#include "core/allocator.h"
#include "core/runtime.h"
#include "ops/dispatch.h"
#include "ops/ops.h"
#include "ops/product.h"

namespace fusewire {

// Bytes: the alignment that TMA and vector loads need of a weight that is used in place.
constexpr uintptr_t kWeightAlignment = 32;

// int32 sums hold this many products of 8 bits, at most 2^14 each.
constexpr int64_t kMostInt8Inputs = int64_t{1} << 17;

namespace {

Stream memory_of(const Tensor& weight, const Stream& stream) {
  return weight.device.type == DeviceType::kCpu ? Stream{} : stream;
}

const GemmKernels& gemm_of(const Weight& weight, DType dtype, const Check& check,
                           const Stream& stream) {
  check.require(weight.format != Format::kInt4 && weight.format != Format::kW4A8, "format: got ",
                name_of(weight.format),
                ", whose numbers come with their scales, wanted another; use Linear.of_int4");
  const GemmKernels* gemm = kernels_for(stream.device, dtype).gemm(weight.format);
  check.require(gemm, "format: got ", name_of(weight.format), " of a ", name_of(dtype),
                " weight, for which ", stream.device.text(),
                " has no kernels; choose another format");
  check.require(!weight.transposed || gemm->packs_transposed, "transposed: got a ",
                name_of(weight.format), " weight [in_features, out_features] on ",
                stream.device.text(), ", whose kernels take none; transpose it");
  return *gemm;
}

// Returns whether a weight is already in the format's bytes.
bool of_codes(const Tensor& weight) {
  return weight.dtype == DType::kUInt8;
}

// Returns the dtype whose kernels pack the weight. Bytes are packed in the same way for every dtype
// that kernels compute in.
DType dtype_of(const Tensor& weight, const Stream& stream) {
  if (!of_codes(weight)) return weight.dtype;
  return stream.device.type == DeviceType::kCpu ? DType::kFloat32 : DType::kFloat16;
}

void check_weight(Check& check, const Tensor& weight, const Tensor* bias, bool transposed, Dim& out,
                  Dim& in) {
  if (of_codes(weight)) {
    check.is("weight", weight, DType::kUInt8, {transposed ? &in : &out, transposed ? &out : &in});
  } else {
    check.floats("weight", weight, {transposed ? &in : &out, transposed ? &out : &in});
  }
  check.contiguous("weight", weight);
  if (bias) check.floats("bias", *bias, {&out});
}

}  // namespace

Linear::Linear(const Tensor& weight, const Tensor* bias, const Stream& stream, bool transposed,
               std::optional<Format> format, const Tensor* scales, float input_scale) {
  const Stream source = memory_of(weight, stream);
  Check check("Linear", source);
  Dim out("out_features"), in("in_features");
  check_weight(check, weight, bias, transposed, out, in);
  const DType dtype = dtype_of(weight, stream);
  weight_.format = format.value_or(format_of(dtype));
  check.require(
      !of_codes(weight) || (scaled(weight_.format) && scales), "weight: got uint8 ",
      scales ? "in " : "without scales in ", name_of(weight_.format),
      ", wanted scales and the format int8, float8_e4m3 or float8_e4m3_blocks, or floats");
  const bool blocks = weight_.format == Format::kFloat8Blocks;
  check.require(!blocks || of_codes(weight), "weight: got ", name_of(weight.dtype),
                " in float8_e4m3_blocks, wanted its uint8 codes and scales");
  check.require(weight_.format != Format::kInt8 || in.size <= kMostInt8Inputs, "in_features: got ",
                in.size, " of an int8 weight, wanted at most ", kMostInt8Inputs,
                ", whose products 32 bits can sum; choose another format");
  if (scales) {
    check.require(scaled(weight_.format), "scales: got some for a ", name_of(weight_.format),
                  " weight, wanted none; they belong to int8 and float8_e4m3");
    Dim row_blocks("out_features / 128", float8_blocks(out.size));
    Dim column_blocks("in_features / 128", float8_blocks(in.size));
    if (blocks) {
      check.is("scales", *scales, DType::kFloat32, {&row_blocks, &column_blocks});
    } else {
      check.is("scales", *scales, DType::kFloat32, {&out});
    }
    check.contiguous("scales", *scales);
  }
  check.require(input_scale == 0 || weight_.format == Format::kFloat8E4M3,
                "input_scale: got one for a ", name_of(weight_.format),
                " weight, wanted none; it belongs to float8_e4m3");
  check.require(std::isfinite(input_scale) && input_scale >= 0, "input_scale: got ", input_scale,
                ", wanted a finite number greater than 0, or none");
  weight_.input_scale = input_scale;
  weight_.out_features = out.size;
  weight_.in_features = in.size;
  weight_.transposed = transposed;

  const CurrentDevice current(stream.device);
  const GemmKernels& gemm = gemm_of(weight_, dtype, check, stream);
  activates_ = gemm.run_activated != nullptr;
  gates_ = gemm.features.gated;
  CachingAllocator& allocator = default_allocator(stream.device);
  const auto lies_well = [](const Tensor& tensor) {
    return tensor.owner && reinterpret_cast<uintptr_t>(tensor.data) % kWeightAlignment == 0;
  };
  if (source.device.type != DeviceType::kCpu && lies_well(weight) && gemm.packing_copies) {
    weight_.data = std::shared_ptr<void>(weight.owner, weight.data);
  } else {
    packed_ = true;
    bytes_ = gemm.packed_bytes(out.size, in.size);
    weight_.data = allocator.allocate(bytes_, "weights", stream);
  }
  if (scaled(weight_.format)) {
    const auto count = static_cast<size_t>(scales_of(weight_.format, out.size, in.size));
    const size_t bytes = count * sizeof(float);
    weight_.scales = allocator.allocate(bytes, "weights", stream);
    bytes_ += bytes;
  }
  copies_bias_ = bias && (packed_ || !lies_well(*bias));
  if (copies_bias_) {
    bias_ = allocator.allocate(bias->bytes(), "weights", stream);
    bytes_ += bias->bytes();
  } else if (bias) {
    bias_ = std::shared_ptr<void>(bias->owner, bias->data);
  }
  fill(weight, scales, stream);
  if (bias) fill_bias(*bias, stream);
}

Linear Linear::with_bias(const Tensor& bias, const Stream& stream) const {
  const Stream source = memory_of(bias, stream);
  Check check("Linear.with_bias", source);
  Dim out("out_features", out_features());
  check.floats("bias", bias, {&out});
  const CurrentDevice current(stream.device);
  Linear other = *this;
  other.bytes_ = bias.bytes();
  other.copies_bias_ = true;
  other.bias_ = default_allocator(stream.device).allocate(other.bytes_, "weights", stream);
  other.fill_bias(bias, stream);
  return other;
}

void Linear::refresh(const Tensor& weight, const Tensor* bias, const Stream& stream) {
  const Stream source = memory_of(weight, stream);
  Check check("Linear.refresh", source);
  Dim out("out_features", out_features()), in("in_features", in_features());
  check_weight(check, weight, bias, weight_.transposed, out, in);
  check.require(!of_codes(weight), "weight: got uint8, wanted floats");
  check.require(
      weight_.format != Format::kFloat8Blocks,
      "weight: got floats for a Linear of float8_e4m3_blocks, which keeps its codes; make "
      "another");
  gemm_of(weight_, weight.dtype, check, stream);
  check.require(!bias == !bias_, "bias: wanted one where the Linear was made with one, else none");
  check.require(refreshes_from(weight, bias),
                "weight: got other tensors than the Linear shares, wanted these; write to them");
  const CurrentDevice current(stream.device);
  fill(weight, nullptr, stream);
  if (bias) fill_bias(*bias, stream);
}

bool Linear::refreshes_from(const Tensor& weight, const Tensor* bias) const {
  return (packed_ || weight.data == weight_.data.get()) &&
         (!bias || copies_bias_ || bias->data == bias_.get());
}

void Linear::fill(const Tensor& weight, const Tensor* scales, const Stream& stream) {
  const GemmKernels& gemm =
      *kernels_for(stream.device, dtype_of(weight, stream)).gemm(weight_.format);
  if (packed_) {
    PackArguments a{weight_.data.get(), weight.data, out_features(), in_features()};
    a.transposed = weight_.transposed;
    a.scales = static_cast<float*>(weight_.scales.get());
    a.given = scales ? scales->as<float>() : nullptr;
    a.codes = of_codes(weight);
    gemm.pack(a, stream);
  }
}

void Linear::fill_bias(const Tensor& bias, const Stream& stream) {
  if (!copies_bias_) return;
  Runtime& device = runtime(stream.device.type);
  if (bias.device.type == DeviceType::kCpu) {
    device.copy_in(bias_.get(), bias.data, bias.bytes(), stream);
  } else {
    device.copy(bias_.get(), bias.data, bias.bytes(), stream);
  }
}

std::vector<const char*> weight_formats(DType dtype, const Stream& stream) {
  const CurrentDevice current(stream.device);
  const Kernels& kernels = kernels_for(stream.device, dtype);
  std::vector<const char*> names;
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    if (kernels.gemm(static_cast<Format>(i))) names.push_back(kFormats[i].name);
  }
  return names;
}

std::vector<int64_t> rows_to_tune(int64_t max_rows, DType dtype, const Stream& stream) {
  const GemmKernels* gemm = kernels_for(stream.device, dtype).gemm(format_of(dtype));
  return gemm ? row_buckets(*gemm, max_rows) : std::vector<int64_t>();
}

namespace ops {

Product product(Check& check, const Tensor& out, const Tensor& x, const Linear& linear,
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
  const bool turned = weight.transposed && gemm->packing_copies;  // used as it is stored
  a.weight = {weight.data.get(),
              turned ? out_features.size : in.size,
              turned,
              weight.scales.get(),
              weight.zeros.get(),
              weight.group,
              static_cast<const int32_t*>(weight.order.get())};
  a.m = tokens.size;
  a.n = out_features.size;
  a.k = in.size;
  a.bias = linear.bias();
  a.activation = activation;
  a.input_scale = weight.input_scale;
  if (residual) {
    a.residual = residual->data;
    a.residual_stride = residual->row_stride;
  }
  check_features(*gemm, a, stream.device);
  return {gemm, a};
}

void linear(const Tensor& out, const Tensor& x, const Linear& linear, Activation activation,
            const Stream& stream) {
  Check check("linear", stream);
  const Product p = product(check, out, x, linear, activation, nullptr, stream);
  dispatch(check, stream, p.arguments.m,
           [&](const Kernels&) { p.kernels->run(p.arguments, stream); });
}

void linear_add(const Tensor& out, const Tensor& x, const Linear& linear, const Tensor& residual,
                const Stream& stream) {
  Check check("linear_add", stream);
  const Product p = product(check, out, x, linear, Activation::kNone, &residual, stream);
  dispatch(check, stream, p.arguments.m,
           [&](const Kernels&) { p.kernels->run(p.arguments, stream); });
}

}  // namespace ops
}  // namespace fusewire
