// Products with int4 weights. Few rows are multiplied by mma (int4_kernel.h) and more rows by
// Hopper's wgmma (sm90_int4.h); both read the 4-bit elements. For many rows on other GPUs, and
// where these kernels do not fit, the weight is dequantised to 16 bits, some channels at a time, in
// memory that the stream keeps, and the 16-bit product is used. If a weight has an order of inputs,
// the columns of x are first reordered, in memory of the same kind.
#include <algorithm>

#include "core/gemm_part.h"
#include "core/raw_memory.h"
#include "cuda/element.h"
#include "cuda/gemm/int4_gemm.h"
#include "cuda/gemm/int4_pack.h"
#include "cuda/gemm/int4_products.h"
#include "cuda/gemm/order_rows.h"
#include "cuda/gemm/sm90_int4.h"
#include "cuda/kernels.h"
#include "cuda/runtime/kept_memory.h"
#include "cuda/training/weights_written.h"

namespace fusewire::cuda {
namespace {

// Returns the number of channels that are dequantised at a time, so that they take at most 64 MB.
// All parts have about the same size, so that products are chosen once.
int64_t part_of(int64_t n, int64_t k, int64_t number_bytes) {
  constexpr int64_t kMostBytes = 64 << 20, kWhole = 256;
  const int64_t parts = (n * k * number_bytes + kMostBytes - 1) / kMostBytes;
  const int64_t channels = (n + parts - 1) / parts;
  return std::min(n, (channels + kWhole - 1) / kWhole * kWhole);
}

// Dequantises into the stream's kept memory, after its first `taken` bytes.
template <class T>
void run_dequantized(const GemmArguments& product, size_t taken, const Stream& stream) {
  const int64_t part = part_of(product.n, product.k, sizeof(T));
  const size_t bytes = round_up(static_cast<size_t>(part * product.k) * sizeof(T), 16);
  auto* kept = static_cast<uint8_t*>(kept_memory(stream, taken + bytes + kWeightsEndBytes));
  auto* numbers = kept + taken;
  for (int64_t first = 0; first < product.n; first += part) {
    GemmArguments a = columns_from<T>(product, first);
    a.weight = {numbers, product.k};
    a.n = std::min(part, a.n);
    dequantize_int4<T>(numbers, product.weight, product.k, first, a.n, stream);
    end_weights(numbers + bytes, stream);
    gemm<T>(format_of(kDTypeOf<T>))->run(a, stream);
  }
}

template <class T>
void multiply(const GemmArguments& a, size_t taken, const Stream& stream) {
  if (const auto chosen = sm90_int4_choice(a)) return sm90_int4<T>(a, *chosen, stream);
  int4_gemm_fits<T>(a) ? int4_gemm<T>(a, stream) : run_dequantized<T>(a, taken, stream);
}

// Returns the number of rows that are reordered at a time: parts of about the same size, of at most
// 64 MB.
int64_t ordered_at_once(int64_t rows, int64_t row_bytes) {
  constexpr int64_t kMostBytes = 64 << 20, kWhole = 8;
  const int64_t parts = (rows * row_bytes + kMostBytes - 1) / kMostBytes;
  return std::min(rows, (rows + parts * kWhole - 1) / (parts * kWhole) * kWhole);
}

// The dequantised weight follows the reordered rows in memory or, if that memory has to grow, is in
// other memory.
template <class T>
void run_ordered(const GemmArguments& product, const Stream& stream) {
  const int64_t rows = ordered_at_once(product.m, product.k * sizeof(T));
  const size_t bytes = static_cast<size_t>(rows * product.k) * sizeof(T);  // k: a multiple of 32
  void* const ordered = kept_memory(stream, bytes);
  for (int64_t first = 0; first < product.m; first += rows) {
    GemmArguments a = rows_from<T>(product, first);
    a.m = std::min(rows, a.m);
    a.x.data = moved<T>(product.x.data, first * product.x.stride);
    order_rows(ordered, a.x, product.weight.order, a.m, a.k, stream);
    a.x = {ordered, a.k};
    a.weight.order = nullptr;
    multiply<T>(a, bytes, stream);
  }
}

template <class T>
void run_int4(const GemmArguments& a, const Stream& stream) {
  a.weight.order ? run_ordered<T>(a, stream) : multiply<T>(a, 0, stream);
}

template <class T>
constexpr GemmKernels kInt4 = {Format::kInt4,
                               {/*transposed_x=*/false, /*transposed_weight=*/false,
                                /*scales=*/true, /*zeros=*/false, /*groups=*/true, /*order=*/true},
                               /*packing_copies=*/false,
                               /*packs_transposed=*/false,
                               packed_int4_bytes,
                               pack_int4,
                               run_int4<T>,
                               gemm_bucket,
                               /*run_normed=*/nullptr,
                               /*run_activated=*/nullptr,
                               int4_scales_bytes};

}  // namespace

template <class T>
const GemmKernels* int4_products() {
  return &kInt4<T>;
}

#define INSTANTIATE(T) template const GemmKernels* int4_products<T>();
INSTANTIATE(__half)
INSTANTIATE(__nv_bfloat16)
#undef INSTANTIATE

}  // namespace fusewire::cuda
