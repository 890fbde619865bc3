// The ops of a KV cache: store keys and values, attend to them, both at once, and copy pages.
#include <cmath>
#include <optional>

#include "ops/attention_arguments.h"
#include "ops/dispatch.h"
#include "ops/ops.h"
#include "ops/rotary.h"

namespace fusewire::ops {
namespace {

// The sizes and format of a layer's cache, taken from its tensors.
struct Cache {
  int64_t pages, kv_heads, head_dim;
  CacheFormat format;
};

Cache check_cache(Check& check, const Tensor& keys, const Tensor& values, const PagedBatch& batch,
                  float k_scale, float v_scale) {
  check.on_device("batch", batch.batch().device());
  Dim pages("pages"), kv_heads("kv_heads"), page_size("page_size", batch.page_size());
  Dim head_dim("head_dim");
  const bool float8 = keys.dtype == DType::kUInt8;
  const auto plane = [&](const char* name, const Tensor& tensor) {
    if (float8) {
      check.is(name, tensor, DType::kUInt8, {&pages, &kv_heads, &page_size, &head_dim});
    } else {
      check.floats(name, tensor, {&pages, &kv_heads, &page_size, &head_dim});
    }
    check.contiguous(name, tensor);
  };
  plane("keys", keys);
  plane("values", values);
  check.require(batch.pages_needed() <= pages.size, "batch: got page ", batch.pages_needed() - 1,
                " in its table, wanted less than ", pages.size, ", the pages of keys");
  const auto scale = [&](const char* name, float value) {
    check.require(std::isfinite(value) && value > 0, name, ": got ", value,
                  ", wanted a finite number greater than 0");
    return float8 ? value : 1.0f;
  };
  return {pages.size,
          kv_heads.size,
          head_dim.size,
          {float8, scale("k_scale", k_scale), scale("v_scale", v_scale)}};
}

void expect_places(const Check& check, const PagedBatch& batch) {
  check.require(batch.excess() <= 0, "batch: got a sequence of ", batch.excess(),
                " more new tokens than its context_lengths counts, wanted them counted");
}

AttentionArguments paged_arguments(Check& check, const Cache& cache, const Tensor& out,
                                   const Tensor& q, const Tensor& keys, const Tensor& values,
                                   const PagedBatch& batch, const AttentionSpec& spec,
                                   const Tensor* bias, const Tensor* log_sum_exp,
                                   const Stream& stream) {
  Dim tokens("tokens", batch.tokens()), width("heads * head_dim");
  check.floats("q", q, {&tokens, &width});
  AttentionArguments a = attention_arguments(check, out, q, spec, cache.kv_heads, cache.head_dim,
                                             batch.excess(), bias, log_sum_exp);
  a.queries = &batch.batch();
  a.pages = &batch;
  a.key_cache = keys.data;
  a.value_cache = values.data;
  a.cache_pages = cache.pages;
  a.cache_format = cache.format;
  expect_supported(check, a, stream);
  return a;
}

}  // namespace

void store_kv(const Tensor& keys, const Tensor& values, const Tensor& k, const Tensor& v,
              const PagedBatch& batch, float k_scale, float v_scale, const Stream& stream) {
  Check check("store_kv", stream);
  const Cache cache = check_cache(check, keys, values, batch, k_scale, v_scale);
  expect_places(check, batch);
  Dim tokens("tokens", batch.tokens());
  Dim width("kv_heads * head_dim", cache.kv_heads * cache.head_dim);
  check.floats("k", k, {&tokens, &width});
  check.floats("v", v, {&tokens, &width});
  AttentionArguments stored{};
  stored.cache_format = cache.format;
  expect_supported(check, stored, stream);
  dispatch(check, stream, batch.tokens(), [&](const Kernels& kernels) {
    kernels.store_kv(keys.data, values.data, cache.format, {k.data, k.row_stride},
                     {v.data, v.row_stride}, batch, cache.kv_heads, cache.head_dim, stream);
  });
}

void paged_attention(const Tensor& out, const Tensor& q, const Tensor& keys, const Tensor& values,
                     const PagedBatch& batch, const AttentionSpec& spec, const Tensor* bias,
                     const Tensor* log_sum_exp, const Stream& stream) {
  Check check("paged_attention", stream);
  const Cache cache = check_cache(check, keys, values, batch, spec.k_scale, spec.v_scale);
  const AttentionArguments a =
      paged_arguments(check, cache, out, q, keys, values, batch, spec, bias, log_sum_exp, stream);
  dispatch(check, stream, batch.tokens(),
           [&](const Kernels& kernels) { kernels.paged_attention(a, stream); });
}

void cached_attention(const Tensor& out, const Tensor& qkv, const Tensor& keys,
                      const Tensor& values, const PagedBatch& batch, const AttentionSpec& spec,
                      const Tensor* bias, const Tensor* positions, const Tensor* cos,
                      const Tensor* sin, const Stream& stream) {
  Check check("cached_attention", stream);
  const Cache cache = check_cache(check, keys, values, batch, spec.k_scale, spec.v_scale);
  expect_places(check, batch);
  const int64_t q_width = spec.heads * cache.head_dim, kv_width = cache.kv_heads * cache.head_dim;
  Dim tokens("tokens", batch.tokens());
  Dim width("(heads + 2 * kv_heads) * head_dim", q_width + 2 * kv_width);
  check.floats("qkv", qkv, {&tokens, &width});
  AttentionArguments a = paged_arguments(check, cache, out, qkv.columns(0, q_width), keys, values,
                                         batch, spec, bias, nullptr, stream);
  a.k = {qkv.columns(q_width, kv_width).data, qkv.row_stride};
  a.v = {qkv.columns(q_width + kv_width, kv_width).data, qkv.row_stride};
  check.require(
      !positions == !cos && !cos == !sin,
      "positions, cos and sin: got some of them, wanted all or none; give the others too");
  std::optional<RotaryArguments> rotary;
  if (cos) {
    rotary = rotary_arguments(check, qkv, *positions, *cos, *sin, spec.heads, cache.kv_heads);
  }
  dispatch(check, stream, batch.tokens(), [&](const Kernels& kernels) {
    const RotaryArguments* const rotation = rotary ? &*rotary : nullptr;
    if (kernels.cached_attention(a, rotation, stream)) return;
    if (rotation) kernels.rotary(*rotation, stream);
    kernels.store_kv(keys.data, values.data, cache.format, a.k, a.v, batch, cache.kv_heads,
                     cache.head_dim, stream);
    kernels.paged_attention(a, stream);
  });
}

void copy_pages(const Tensor& cache, const Tensor& from, const Tensor& to, int64_t leading,
                const Stream& stream) {
  Check check("copy_pages", stream);
  Dim planes("planes"), pages("pages"), heads("heads"), elements("elements"), count("n");
  check.floats("cache", cache, {&planes, &pages, &heads, &elements});
  check.contiguous("cache", cache);
  check.is("from", from, DType::kInt64, {&count});
  check.is("to", to, DType::kInt64, {&count});
  if (leading < 0 || leading > elements.size) {
    fail("copy_pages: leading: got ", leading, ", wanted 0 to ", elements.size,
         ", the elements of a head");
  }
  const CopiedPages copied = {cache.data, planes.size,   pages.size,
                              heads.size, elements.size, leading};
  const int64_t each = planes.size * heads.size * leading;
  dispatch(check, stream, count.size * each, [&](const Kernels& kernels) {
    kernels.copy_pages(copied, from.as<int64_t>(), to.as<int64_t>(), count.size, stream);
  });
}

}  // namespace fusewire::ops
