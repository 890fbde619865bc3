#include "core/adam.h"
#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {
namespace {

void require_borders(const Check& check, const int64_t* at, int64_t segments, int64_t count) {
  for (int64_t i = 0; i < segments; ++i) {
    check.require(at[i] <= at[i + 1], "segments[", i + 1, "]: got ", at[i + 1],
                  ", wanted at least segments[", i, "], ", at[i]);
  }
  check.require(at[0] == 0 && at[segments] == count, "segments: got ", at[0], " to ", at[segments],
                ", wanted 0 to ", count);
}

}  // namespace

void cast(const Tensor& out, const Tensor& x, const Stream& stream) {
  Check check("cast", stream);
  Dim count("n");
  check.is("x", x, DType::kFloat32, {&count});
  check.floats("out", out, {&count});
  dispatch_training(check, stream, count.size, [&](const TrainingKernels& kernels) {
    kernels.cast(out.data, x.as<float>(), count.size, stream);
  });
}

void gradient_norm(const Tensor& out, const Tensor& gradients, const Stream& stream) {
  Check check("gradient_norm", stream);
  Dim parts("parts"), two("sum and count", 2), count("n");
  check.floats("gradients", gradients, {&count});
  check.is("out", out, DType::kFloat32, {&parts, &two});
  check.contiguous("out", out);
  dispatch_training(check, stream, parts.size, [&](const TrainingKernels& kernels) {
    kernels.gradient_norm(out.as<float>(), parts.size, gradients.as<float>(), count.size, stream);
  });
}

void adam_factors(const Tensor& factors, const Tensor& norm, const Tensor& skipped,
                  const Tensor& steps, const Tensor& sums, const Tensor& firsts,
                  const Tensor& log_betas, double max_norm, const Tensor* scale,
                  const Stream& stream) {
  Check check("adam_factors", stream);
  Dim runs("runs"), parts("parts"), members("members"), one("one", 1), two("two", 2), four("4", 4);
  check.is("factors", factors, DType::kFloat32, {&runs, &four});
  check.is("norm", norm, DType::kFloat32, {&one});
  check.is("skipped", skipped, DType::kFloat32, {&one});
  check.is("steps", steps, DType::kFloat32, {&members});
  check.is("sums", sums, DType::kFloat32, {&parts, &two});
  check.is("firsts", firsts, DType::kInt64, {&runs});
  check.is("log_betas", log_betas, DType::kFloat32, {&runs, &two});
  if (scale) check.is("scale", *scale, DType::kFloat32, {&one});
  check.require(max_norm > 0, "max_norm: got ", max_norm, ", wanted more than 0");
  dispatch_training(check, stream, 1, [&](const TrainingKernels& kernels) {
    const int64_t* first = firsts.as<int64_t>();
    for (int64_t run = 0; stream.device.type == DeviceType::kCpu && run < runs.size; ++run) {
      check.require(first[run] >= 0 && first[run] < members.size, "firsts[", run, "]: got ",
                    first[run], ", wanted 0 to ", members.size - 1);
    }
    kernels.adam_factors(
        {factors.as<float>(), norm.as<float>(), skipped.as<float>(), steps.as<float>(),
         sums.as<float>(), log_betas.as<float>(), scale ? scale->as<float>() : nullptr, first,
         parts.size, runs.size, members.size, max_norm},
        stream);
  });
}

void adam(const Tensor& parameters, const Tensor& gradients, const Tensor& exp_avg,
          const Tensor& exp_avg_sq, const Tensor& segments, const Tensor& rates,
          const Tensor& decays, double beta1, double beta2, double eps, const Tensor& factors,
          bool decoupled, const Tensor* shadow, int64_t first, const Stream& stream) {
  Check check("adam", stream);
  const bool half = parameters.dtype == DType::kBFloat16;
  check.require(!half || !shadow, "shadow: got one of bfloat16 parameters, wanted none");
  check.require(first >= 0, "first: got ", first, ", wanted 0 or more");
  Dim count("n"), borders("segments + 1"), segment_count("segments");
  if (shadow) check.floats("shadow", *shadow, {&count});
  const bool on_cpu = stream.device.type == DeviceType::kCpu;
  // The CPU's kernels are those for float32, whatever the parameters are.
  if (!shadow && half && on_cpu) check.floats("gradients", gradients, {&count});
  if (!shadow && !(half && on_cpu)) check.floats("parameters", parameters, {&count});
  check.is("parameters", parameters, half ? DType::kBFloat16 : DType::kFloat32, {&count});
  check.is("gradients", gradients, DType::kFloat32, {&count});
  check.is("exp_avg", exp_avg, DType::kFloat32, {&count});
  check.is("exp_avg_sq", exp_avg_sq, DType::kFloat32, {&count});
  check.is("segments", segments, DType::kInt64, {&borders});
  check.is("rates", rates, DType::kFloat32, {&segment_count});
  check.is("decays", decays, DType::kFloat32, {&segment_count});
  check.require(segment_count.size >= 1 && borders.size == segment_count.size + 1,
                "segments: got int64[", borders.size, "], wanted int64[", segment_count.size + 1,
                "], a border more than there are rates");
  const auto fraction = [&](const char* name, double value) {
    check.require(value >= 0 && value < 1, name, ": got ", value,
                  ", wanted 0 or more, and less than 1");
  };
  fraction("beta1", beta1);
  fraction("beta2", beta2);
  check.require(eps >= 0, "eps: got ", eps, ", wanted 0 or more");
  Dim four("factors", 4);
  check.is("factors", factors, DType::kFloat32, {&four});
  dispatch_training(check, stream, count.size, [&](const TrainingKernels& kernels) {
    const int64_t* at = segments.as<int64_t>();
    if (on_cpu) require_borders(check, at, segment_count.size, count.size);
    kernels.adam({parameters.data, half, first, exp_avg.as<float>(), exp_avg_sq.as<float>(),
                  gradients.as<float>(), at, rates.as<float>(), decays.as<float>(),
                  segment_count.size, count.size, beta1, beta2, eps, factors.as<float>(), decoupled,
                  shadow ? shadow->data : nullptr},
                 stream);
  });
}

}  // namespace fusewire::ops
