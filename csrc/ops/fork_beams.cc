#include "ops/dispatch.h"
#include "ops/ops.h"

namespace fusewire::ops {
namespace {

constexpr int64_t kMostBeams = 512;  // of a group, in a block's shared memory (cuda/sampling)

}  // namespace

void fork_beams(const Tensor& ids, const Tensor& beam_scores, const Tensor& block_table,
                const Tensor& copies, const Tensor& scores, const Tensor& beams,
                const Tensor& tokens, const Tensor& parent_table, const Tensor& groups,
                const Tensor& fresh, const Tensor& ends, const Stream& stream) {
  Check check("fork_beams", stream);
  Dim rows("rows"), width("width"), parents("parents"), searches("searches"), most("most");
  Dim count("groups"), columns("columns of groups", sizeof(ForkedGroup) / sizeof(int32_t));
  Dim both("from and to", 2), most_ends("ends");
  check.is("ids", ids, DType::kInt64, {&rows});
  check.is("beam_scores", beam_scores, DType::kFloat32, {&rows});
  check.is("block_table", block_table, DType::kInt32, {&rows, &width});
  check.is("copies", copies, DType::kInt64, {&both, &rows});
  check.is("scores", scores, DType::kFloat32, {&searches, &most});
  check.is("beams", beams, DType::kInt32, {&searches, &most});
  check.is("tokens", tokens, DType::kInt32, {&searches, &most});
  check.is("parent_table", parent_table, DType::kInt32, {&parents, &width});
  check.is("groups", groups, DType::kInt32, {&count, &columns});
  check.is("fresh", fresh, DType::kInt32, {&rows});
  check.is("ends", ends, DType::kInt32, {&count, &most_ends});
  for (const Tensor* each :
       {&block_table, &copies, &scores, &beams, &tokens, &parent_table, &groups, &ends})
    check.contiguous("tables", *each);
  check.require(most.size <= 4 * kMostBeams, "most: got ", most.size, ", wanted at most ",
                4 * kMostBeams, ", the width of scores");
  dispatch(check, stream, rows.size, [&](const Kernels& kernels) {
    auto* const from = copies.as<int64_t>();
    kernels.fork_beams(
        {ids.as<int64_t>(), beam_scores.as<float>(), block_table.as<int32_t>(), from,
         from + rows.size, scores.as<float>(), beams.as<int32_t>(), tokens.as<int32_t>(),
         parent_table.as<int32_t>(), reinterpret_cast<const ForkedGroup*>(groups.as<int32_t>()),
         fresh.as<int32_t>(), ends.as<int32_t>(), rows.size, parents.size, width.size,
         searches.size, most.size, count.size, most_ends.size},
        stream);
  });
}

}  // namespace fusewire::ops
