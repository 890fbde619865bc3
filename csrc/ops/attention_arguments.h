// The checks and arguments that all attention ops share.
#pragma once

#include "core/check.h"
#include "core/kernels.h"

namespace fusewire::ops {

// Returns the arguments except queries and keys, whose sequences the op knows. `excess`: by how
// many tokens the queries of a sequence exceed its keys at most.
AttentionArguments attention_arguments(Check& check, const Tensor& out, const Tensor& q,
                                       const AttentionSpec& spec, int64_t kv_heads,
                                       int64_t head_dim, int64_t excess, const Tensor* bias,
                                       const Tensor* log_sum_exp);

// Returns all arguments of an attention over packed k and v.
AttentionArguments packed_arguments(Check& check, const Tensor& out, const Tensor& q,
                                    const Tensor& k, const Tensor& v, const SequenceBatch& queries,
                                    const SequenceBatch& keys, const AttentionSpec& spec,
                                    const Tensor* bias, const Tensor* log_sum_exp,
                                    const Stream& stream);

// Throws Error if no kernel of the target supports these arguments; it names the target and what is
// missing.
void expect_supported(const Check& check, const AttentionArguments& a, const Stream& stream);

}  // namespace fusewire::ops
