#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {
namespace {

constexpr int64_t kMost = 2048;                        // limit of a block's sort (cuda/sampling)
constexpr int64_t kElements = (int64_t{1} << 32) - 1;  // 32-bit indices

}  // namespace

void beam_candidates(const Tensor& scores, const Tensor& log_probs, const Tensor& beams,
                     const Tensor& tokens, const Tensor& logits, const Tensor& offsets,
                     const Tensor& counts, const Tensor& beam_scores, bool normalized,
                     const Stream& stream) {
  Check check("beam_candidates", stream);
  Dim rows("rows"), vocab("vocab"), groups("groups"), most("most");
  check.floats("logits", logits, {&rows, &vocab});
  check.is("scores", scores, DType::kFloat32, {&groups, &most});
  check.is("log_probs", log_probs, DType::kFloat32, {&groups, &most});
  check.is("beams", beams, DType::kInt32, {&groups, &most});
  check.is("tokens", tokens, DType::kInt32, {&groups, &most});
  for (const Tensor* out : {&scores, &log_probs, &beams, &tokens})
    check.contiguous("outputs", *out);
  Dim ends("groups + 1", groups.size + 1);
  check.is("offsets", offsets, DType::kInt32, {&ends});
  check.is("counts", counts, DType::kInt32, {&groups});
  check.is("beam_scores", beam_scores, DType::kFloat32, {&rows});
  check.require(vocab.size >= 1, "logits: got rows without columns, wanted at least one");
  check.require(rows.size <= kElements / vocab.size, "logits: got ", rows.size, " rows of ",
                vocab.size, ", wanted at most ", kElements, " elements; use fewer groups");
  check.require(most.size >= 1 && most.size <= kMost, "most: got ", most.size, ", wanted 1 to ",
                kMost, ", the width of scores");
  dispatch(check, stream, groups.size, [&](const Kernels& kernels) {
    kernels.beam_candidates(
        {scores.as<float>(), log_probs.as<float>(), beams.as<int32_t>(), tokens.as<int32_t>(),
         logits.data, logits.row_stride, rows.size, vocab.size, offsets.as<int32_t>(),
         counts.as<int32_t>(), beam_scores.as<float>(), groups.size, most.size, normalized},
        stream);
  });
}

}  // namespace fusewire::ops
