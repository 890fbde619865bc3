// Computes matrix products with the implementation that was fastest when they were timed
// (gemm_choice.h). A weight is used as it is stored, with k or, transposed, n innermost: packing is
// a copy. Our own kernels need k innermost; cuBLASLt computes transposed weights. A weight in
// float8_e4m3 or int8 is multiplied by rows that are quantised just before (quantize_rows.h), or by
// the kernel that produces them. Both operands have a scale per row or, for float8_e4m3_blocks, per
// block.
#include <algorithm>
#include <memory>
#include <type_traits>

#include "core/allocator.h"
#include "core/gemm_part.h"
#include "core/raw_memory.h"
#include "cuda/element.h"
#include "cuda/gemm/cublaslt_gemm.h"
#include "cuda/gemm/gemm_choice.h"
#include "cuda/gemm/int4_products.h"
#include "cuda/gemm/int8_gemm.h"
#include "cuda/gemm/plain_gemm.h"
#include "cuda/gemm/quantize_rows.h"
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace fusewire::cuda {

namespace {

template <class T>
size_t packed_bytes(int64_t n, int64_t k) {
  return round_up(static_cast<size_t>(n * k) * sizeof(T), 16);
}

template <class T>
void pack(const PackArguments& a, const Stream& stream) {
  check(cudaMemcpyAsync(a.packed, a.weight, static_cast<size_t>(a.n * a.k) * sizeof(T),
                        cudaMemcpyDefault, handle(stream)),  // also from the host
        "pack");
}

template <class T>
void run_whole(const GemmArguments& a, const Stream& stream) {
  if (run_gemm<T>(a, choose_gemm<T>(a, stream), stream)) return;
  // What suits the bucket does not always suit each of its products, nor does the choice of a
  // neighbouring bucket.
  for (const CublasltAlgorithm& algorithm : cublaslt_algorithms<T>(a, 1, Rounding::kOnce, stream)) {
    if (cublaslt_gemm<T>(a, algorithm, stream)) return;
  }
  if constexpr (!std::is_same_v<T, float>) {
    if (a.integers) return int8_gemm<T>(a, stream);
    const int own = a.blocks ? first_sm90_configuration(a) : -1;
    if (own >= 0) return sm90_gemm<T>(a, own, stream);
  }
  plain_gemm<T>(a, stream);
}

// Returns how many columns are computed together; the remaining ones are a separate product. Tensor
// core kernels write vectors of 8 elements. For a vocabulary whose size is not a multiple of 8 the
// library has only kernels that are several times slower, so the last columns are computed
// separately. Products of few rows without a bias are not split: our own kernels compute them.
template <class T>
int64_t columns_together(const GemmArguments& a) {
  constexpr int64_t kVector = 8, kWide = 4096, kFewRows = 64;
  const bool splits = sizeof(T) == 2 && a.n > kWide && a.n % kVector != 0 &&
                      a.out_stride % kVector == 0 && a.residual_stride % kVector == 0 &&
                      !a.weight.transposed && !a.x.scales;
  const bool own = a.m <= kFewRows && !a.bias && !a.residual;
  return splits && !own ? a.n / kVector * kVector : a.n;
}

template <class T>
void run(const GemmArguments& product, const Stream& stream) {
  GemmArguments a = product;
  if (a.m == 1) {  // no second row is read: a stride that is not aligned must not rule out the fast
                   // kernels
    a.x.stride = static_cast<int64_t>(round_up(static_cast<size_t>(a.k), 16));
    a.out_stride = a.residual_stride = static_cast<int64_t>(round_up(static_cast<size_t>(a.n), 16));
    a.both_stride = a.out_stride;
  }
  if (a.both) {
    if (a.n % 16 == 0 && run_gemm<T>(a, choose_gemm<T>(a, stream), stream)) return;
    run<T>(ungated(a), stream);
    return gate<T>(a.out, a.out_stride, a.both, a.both_stride, a.m, a.n / 2, a.activation, stream);
  }
  const int64_t together = columns_together<T>(a);
  if (together < a.n) {
    GemmArguments last = columns_from<T>(a, together);
    last.weight.data = moved<T>(a.weight.data, together * a.weight.stride);
    a.n = together;
    run_whole<T>(last, stream);
  }
  run_whole<T>(a, stream);
}

int64_t code_columns(int64_t k) {
  return static_cast<int64_t>(round_up(static_cast<size_t>(k), kCodeColumns));
}

size_t packed_code_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(n * code_columns(k));
}

bool on_device(const void* data) {
  cudaPointerAttributes found;
  check(cudaPointerGetAttributes(&found, data), "pack");
  return found.type == cudaMemoryTypeDevice || found.type == cudaMemoryTypeManaged;
}

// Packs a weight that is already in 8 bits, on the host or the device.
void copy_codes(const PackArguments& a, Format format, const Stream& stream) {
  const size_t columns = static_cast<size_t>(a.k), rows = static_cast<size_t>(a.n);
  const size_t padded = static_cast<size_t>(code_columns(a.k));
  if (padded != columns) {
    check(cudaMemsetAsync(a.packed, 0, padded * rows, handle(stream)), "pack");
  }
  check(cudaMemcpy2DAsync(a.packed, padded, a.weight, columns, columns, rows, cudaMemcpyDefault,
                          handle(stream)),
        "pack");
  const auto scales = static_cast<size_t>(scales_of(format, a.n, a.k));
  check(
      cudaMemcpyAsync(a.scales, a.given, scales * sizeof(float), cudaMemcpyDefault, handle(stream)),
      "pack");
}

// Rows on the host are copied through a temporary buffer that bypasses the cache of the allocator,
// so that it leaves no hole among the weights.
template <class T, class Code>
void quantize_weight(const PackArguments& a, const Stream& stream) {
  constexpr int64_t kPieceBytes = 64 << 20;
  QuantizeArguments q{static_cast<uint8_t*>(a.packed),
                      a.scales,
                      a.weight,
                      a.k,
                      a.n,
                      a.k,
                      code_columns(a.k),
                      a.given};
  std::shared_ptr<void> piece, given;
  CachingAllocator& allocator = default_allocator(stream.device);
  const int64_t row_bytes = a.k * static_cast<int64_t>(sizeof(T));
  const bool here = on_device(a.weight);
  if (!here) {
    q.rows = std::clamp<int64_t>(kPieceBytes / row_bytes, 1, a.n);
    piece = allocator.allocate_uncached(static_cast<size_t>(q.rows * row_bytes), "packing", stream);
    q.x = piece.get();
  }
  if (a.given && !on_device(a.given)) {
    const size_t bytes = static_cast<size_t>(a.n) * sizeof(float);
    given = allocator.allocate_uncached(bytes, "packing", stream);
    check(cudaMemcpyAsync(given.get(), a.given, bytes, cudaMemcpyDefault, handle(stream)), "pack");
    q.given = static_cast<const float*>(given.get());
  }
  for (int64_t row = 0; row < a.n; row += q.rows) {
    q.rows = std::min(q.rows, a.n - row);
    if (!here) {
      check(cudaMemcpyAsync(piece.get(), static_cast<const T*>(a.weight) + row * a.k,
                            static_cast<size_t>(q.rows * row_bytes), cudaMemcpyDefault,
                            handle(stream)),
            "pack");
    }
    if constexpr (std::is_same_v<Code, int8_t>) {
      quantize_int8_weights<T>(q, stream);
    } else {
      quantize_rows<T, Code>(q, stream);
    }
    q.data += q.rows * q.padded;
    q.scales += q.rows;
    if (q.given) q.given += q.rows;
  }
}

template <class Code>
constexpr Format kFormatOf = std::is_same_v<Code, int8_t> ? Format::kInt8
                             : kInBlocks<Code>            ? Format::kFloat8Blocks
                                                          : Format::kFloat8E4M3;

template <class T, class Code>
void pack_codes(const PackArguments& a, const Stream& stream) {
  if (kInBlocks<Code> || a.codes) {
    copy_codes(a, kFormatOf<Code>, stream);
  } else if constexpr (!kInBlocks<Code>) {
    quantize_weight<T, Code>(a, stream);
  }
  // Products fetch weights before they wait for earlier kernels (launch.h), so packing must have
  // ended.
  check(cudaStreamSynchronize(handle(stream)), "pack");
}

// Returns how many rows are computed together; the remaining ones are a separate product. For e4m3
// in blocks the library takes multiples of 4 rows only, so rows are split where it was fastest.
template <class T>
int64_t rows_together(const GemmArguments& a, const Stream& stream) {
  GemmArguments some = a;
  some.m = a.m - a.m % 4;
  if (!a.blocks || some.m == a.m || !cublaslt_fits(some)) return a.m;
  return choose_gemm<T>(a, stream).kernel == GemmKernel::kCublaslt ? some.m : a.m;
}

// Quantises rows with quantize(arguments) and computes their product.
template <class T, class Code, class Quantize>
void multiply_codes(const GemmArguments& product, const Stream& stream, Quantize&& quantize) {
  GemmArguments a = product;
  a.k = code_columns(product.k);
  a.integers = std::is_same_v<Code, int8_t>;
  a.blocks = kInBlocks<Code>;
  const int64_t scales = a.blocks ? float8_blocks(a.k) * block_scale_stride(a.m) : a.m;
  const QuantizedRows rows = quantized_rows_of(stream, a.m, a.k, scales);
  QuantizeArguments q{rows.data, rows.scales, a.x.data, a.x.stride, a.m, product.k, a.k};
  q.input_scale = a.input_scale;
  a.x = {rows.data, a.k, false, rows.scales};
  a.weight.stride = a.k;
  q.together = rows_together<T>(a, stream);
  q.scale_stride = block_scale_stride(q.together);
  quantize(q);
  GemmArguments rest = rows_from<T>(a, q.together);
  a.m = q.together;
  run<T>(a, stream);
  if (rest.m == 0) return;
  rest.x.data = rows.data + q.together * a.k;
  rest.x.scales = rows.scales + q.scale_place(0, q.together);
  run<T>(rest, stream);
}

template <class T, class Code>
void run_codes(const GemmArguments& a, const Stream& stream) {
  multiply_codes<T, Code>(a, stream,
                          [&](const QuantizeArguments& q) { quantize_rows<T, Code>(q, stream); });
}

template <class T, class Code>
void run_normed_codes(const GemmArguments& a, const NormArguments& norm, bool centered,
                      const Stream& stream) {
  multiply_codes<T, Code>(a, stream, [&](const QuantizeArguments& q) {
    quantize_norm<T, Code>(q, norm, centered, stream);
  });
}

template <class T, class Code>
void run_activated_codes(const GemmArguments& a, Activation activation, bool gated,
                         const Stream& stream) {
  multiply_codes<T, Code>(a, stream, [&](const QuantizeArguments& q) {
    quantize_activated<T, Code>(q, activation, gated, stream);
  });
}

template <class T>
constexpr GemmKernels kOwnFormat = {format_of(kDTypeOf<T>),
                                    {/*transposed_x=*/false, /*transposed_weight=*/true,
                                     /*scales=*/false, /*zeros=*/false, /*groups=*/false,
                                     /*order=*/false, /*beta=*/false,
                                     /*gated=*/sizeof(T) == 2},
                                    /*packing_copies=*/true,
                                    /*packs_transposed=*/true,
                                    packed_bytes<T>,
                                    pack<T>,
                                    run<T>,
                                    gemm_bucket};

template <class T, class Code>
constexpr GemmKernels kCodes = {
    kFormatOf<Code>,
    {/*transposed_x=*/false, /*transposed_weight=*/false, /*scales=*/true},
    /*packing_copies=*/false,
    /*packs_transposed=*/false,
    packed_code_bytes,
    pack_codes<T, Code>,
    run_codes<T, Code>,
    gemm_bucket,
    run_normed_codes<T, Code>,
    run_activated_codes<T, Code>};

}  // namespace

template <class T>
const GemmKernels* gemm(Format format) {
  if (format == kOwnFormat<T>.format) return &kOwnFormat<T>;
  if constexpr (!std::is_same_v<T, float>) {
    // Tensor cores of Ada also support e4m3, but cuBLASLt takes no scales per row there.
    if (format == Format::kFloat8E4M3 && hopper()) return &kCodes<T, __nv_fp8_e4m3>;
    if (format == Format::kFloat8Blocks && hopper()) return &kCodes<T, Float8Block>;
    if (format == Format::kInt8) return &kCodes<T, int8_t>;
    if (format == Format::kInt4) return int4_products<T>();
  }
  return nullptr;
}

#define INSTANTIATE(T) template const GemmKernels* gemm<T>(Format);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
