// The ops of a cache of keys and values: store them, attend to them, both at once; copy its pages.
#include <optional>

#include "ops/dispatch.h"
#include "ops/ops.h"
#include "ops/rotary.h"

namespace fusewire::ops {
namespace {

// What the shapes of a layer's cache and of qkv say about heads.
struct Heads {
  int64_t heads, kv_heads, head_dim;
};

Heads check_cache(Check& check, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                  const PagedBatch& batch, int64_t heads) {
  check.on_device("batch", batch.batch().device());
  Dim pages("pages"), kv_heads("kv_heads"), page_size("page_size", batch.page_size());
  Dim head_dim("head_dim"), tokens("tokens", batch.tokens());
  check.floats("keys", keys, {&pages, &kv_heads, &page_size, &head_dim});
  check.floats("values", values, {&pages, &kv_heads, &page_size, &head_dim});
  check.contiguous("keys", keys);
  check.contiguous("values", values);
  check.require(batch.pages_needed() <= pages.size, "batch: got page ", batch.pages_needed() - 1,
                " in its table, wanted less than ", pages.size, ", the pages of keys");
  check.require(heads > 0 && kv_heads.size > 0 && heads % kv_heads.size == 0, "heads: got ", heads,
                ", wanted a multiple of the cache's kv_heads ", kv_heads.size);
  Dim width("(heads + 2 * kv_heads) * head_dim", (heads + 2 * kv_heads.size) * head_dim.size);
  check.floats("qkv", qkv, {&tokens, &width});
  return {heads, kv_heads.size, head_dim.size};
}

PagedAttentionArguments paged_arguments(Check& check, const Heads& h, const Tensor& out,
                                        const Tensor& qkv, const Tensor& keys, const Tensor& values,
                                        const PagedBatch& batch, float scale, int64_t window,
                                        float soft_cap, const Tensor* alibi_slopes) {
  Dim tokens("tokens", batch.tokens()), width("heads * head_dim", h.heads * h.head_dim);
  Dim head_count("heads", h.heads);
  check.floats("out", out, {&tokens, &width});
  check.require(window >= 0, "window: got ", window, ", wanted 0 (everything) or more");
  check.require(soft_cap >= 0, "soft_cap: got ", soft_cap, ", wanted 0 (none) or more");
  if (alibi_slopes) check.is("alibi_slopes", *alibi_slopes, DType::kFloat32, {&head_count});
  return {out.data,       qkv.data,   out.row_stride,
          qkv.row_stride, keys.data,  values.data,
          keys.shape[0],  &batch,     h.heads,
          h.kv_heads,     h.head_dim, window,
          scale,          soft_cap,   alibi_slopes ? alibi_slopes->as<float>() : nullptr};
}

void store(const Kernels& kernels, const Tensor& keys, const Tensor& values, const Tensor& qkv,
           const PagedBatch& batch, const Heads& h, const Stream& stream) {
  kernels.store_kv(keys.data, values.data, qkv.data, qkv.row_stride, batch, h.heads, h.kv_heads,
                   h.head_dim, stream);
}

}  // namespace

void store_kv(const Tensor& keys, const Tensor& values, const Tensor& qkv, const PagedBatch& batch,
              int64_t heads, const Stream& stream) {
  Check check("store_kv", stream);
  const Heads h = check_cache(check, keys, values, qkv, batch, heads);
  dispatch(check, stream, batch.tokens(),
           [&](const Kernels& kernels) { store(kernels, keys, values, qkv, batch, h, stream); });
}

void paged_attention(const Tensor& out, const Tensor& qkv, const Tensor& keys, const Tensor& values,
                     const PagedBatch& batch, int64_t heads, float scale, int64_t window,
                     float soft_cap, const Tensor* alibi_slopes, const Stream& stream) {
  Check check("paged_attention", stream);
  const Heads h = check_cache(check, keys, values, qkv, batch, heads);
  const PagedAttentionArguments a = paged_arguments(check, h, out, qkv, keys, values, batch, scale,
                                                    window, soft_cap, alibi_slopes);
  dispatch(check, stream, batch.tokens(),
           [&](const Kernels& kernels) { kernels.paged_attention(a, stream); });
}

void cached_attention(const Tensor& out, const Tensor& qkv, const Tensor& keys,
                      const Tensor& values, const PagedBatch& batch, int64_t heads, float scale,
                      int64_t window, float soft_cap, const Tensor* alibi_slopes,
                      const Tensor* positions, const Tensor* cos, const Tensor* sin,
                      const Stream& stream) {
  Check check("cached_attention", stream);
  const Heads h = check_cache(check, keys, values, qkv, batch, heads);
  const PagedAttentionArguments a = paged_arguments(check, h, out, qkv, keys, values, batch, scale,
                                                    window, soft_cap, alibi_slopes);
  check.require(
      !positions == !cos && !cos == !sin,
      "positions, cos and sin: got some of them, wanted all or none; give the others too");
  std::optional<RotaryArguments> rotary;
  if (cos) rotary = rotary_arguments(check, qkv, *positions, *cos, *sin, heads, h.kv_heads);
  dispatch(check, stream, batch.tokens(), [&](const Kernels& kernels) {
    const RotaryArguments* const turn = rotary ? &*rotary : nullptr;
    if (kernels.cached_attention(a, keys.data, values.data, turn, stream)) return;
    if (turn) kernels.rotary(*turn, stream);
    store(kernels, keys, values, qkv, batch, h, stream);
    kernels.paged_attention(a, stream);
  });
}

void copy_pages(const Tensor& cache, const Tensor& from, const Tensor& to, const Stream& stream) {
  Check check("copy_pages", stream);
  Dim planes("planes"), pages("pages"), elements("elements"), count("n");
  check.floats("cache", cache, {&planes, &pages, &elements});
  check.contiguous("cache", cache);
  check.is("from", from, DType::kInt64, {&count});
  check.is("to", to, DType::kInt64, {&count});
  dispatch(check, stream, count.size * elements.size * planes.size, [&](const Kernels& kernels) {
    kernels.copy_pages(cache.data, planes.size, pages.size, elements.size, from.as<int64_t>(),
                       to.as<int64_t>(), count.size, stream);
  });
}

}  // namespace fusewire::ops
