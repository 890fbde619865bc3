// GEMM on prepacked weights: out[m, n] = activation(x[m, k] . weight[n, k]^T + bias) + residual.
//
// Weights are packed once into panels of 32 output columns, [n / 32][k][32], the same for every
// instruction set. The value of an output element depends neither on the number of rows of the call
// nor on how the work is split, so a request's result is bit-equal in any batch. Bias, activation
// and residual are applied while the sums are in registers. Nothing is compiled or tuned per shape:
// ragged batches have a new row count with every call.
// The blocking follows Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (2008), without the packing of x: its broadcasts hide behind the multiply-adds.
#include "cpu/gemm.h"

#include "core/kernels.h"
#include "cpu/gemm_bfloat16.h"
#include "cpu/gemm_int4.h"
#include "cpu/gemm_int8.h"
#include "cpu/gemm_tasks.h"
#include "cpu/gemm_tile.h"

namespace fusewire::FUSEWIRE_TARGET {
namespace {

size_t packed_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(panels_of(n) * kPanel * k) * sizeof(float);
}

void pack(const PackArguments& a, const Stream&) {
  float* packed = static_cast<float*>(a.packed);
  const float* weight = static_cast<const float*>(a.weight);
  if (a.transposed) {
    pack_columns(packed, weight, a.n, a.n, a.k);
  } else {
    pack_rows(packed, weight, a.n, a.k);
  }
}

void run(const GemmArguments& a, const Stream&) {
  const float* weight = static_cast<const float*>(a.weight.data);
  const int64_t panel_floats = kPanel * a.k;
  for_tiles<kMaxRows>(a.m, a.n, [&](auto rows, const Tile& at) {
    constexpr int kRows = decltype(rows)::value;
    const Product product = {
        static_cast<const float*>(a.x.data) + at.row * a.x.stride,
        a.x.stride,
        1,
        weight + at.panel * panel_floats + at.inside,
        kPanel,
        a.k,
        weight + at.fetched_panel * panel_floats + at.part * a.k * fetched(at.fetch)};
    compute_tile<kRows>(a, at, product);
  });
}

// Panels serve products alone. A tied embedding, which is also the output head, keeps its rows as
// well: the elements of a row are a panel's width apart in a panel, so each would be read with a
// cache line of others.
constexpr GemmKernels kFloat32 = {Format::kFloat32,          {},
                                  /*packing_copies=*/false,
                                  /*packs_transposed=*/true, packed_bytes, pack, run,
                                  /*bucket=*/nullptr};

constexpr GemmKernels int8(void (*run)(const GemmArguments& a, const Stream& stream)) {
  GemmFeatures features;
  features.scales = true;
  return {Format::kInt8,
          features,
          /*packing_copies=*/false,
          /*packs_transposed=*/true,
          int8_packed_bytes,
          pack_int8,
          run,
          /*bucket=*/nullptr};
}

constexpr GemmKernels bfloat16(void (*run)(const GemmArguments& a, const Stream& stream)) {
  return {Format::kBFloat16,
          {},
          /*packing_copies=*/false,
          /*packs_transposed=*/true,
          bfloat16_packed_bytes,
          pack_bfloat16,
          run,
          /*bucket=*/nullptr};
}

constexpr GemmKernels of_4_bits(Format format,
                                void (*run)(const GemmArguments& a, const Stream& stream)) {
  GemmFeatures features;
  features.scales = features.zeros = features.groups = features.order = true;
  return {format,
          features,
          /*packing_copies=*/false,
          /*packs_transposed=*/false,
          int4_packed_bytes,
          pack_int4,
          run,
          /*bucket=*/nullptr,
          /*run_normed=*/nullptr,
          /*run_activated=*/nullptr,
          int4_scales_bytes};
}

constexpr GemmKernels kInt4 = of_4_bits(Format::kInt4, run_int4);

constexpr GemmKernels kTable[] = {kFloat32, int8(run_int8), bfloat16(run_bfloat16), kInt4,
                                  of_4_bits(Format::kW4A8, run_w4a8)};

}  // namespace

const GemmKernels* gemm(Format format) {
  return kernels_of(kTable, format);
}

#if FUSEWIRE_VEC_BYTES == 64
const GemmKernels* gemm_vnni(Format format) {
  static constexpr GemmKernels kVnniTable[] = {kFloat32, int8(run_int8_vnni),
                                               bfloat16(run_bfloat16), kInt4,
                                               of_4_bits(Format::kW4A8, run_w4a8_vnni)};
  return kernels_of(kVnniTable, format);
}

const GemmKernels* gemm_bf16(Format format) {
  static constexpr GemmKernels kBf16Table[] = {kFloat32, int8(run_int8_vnni),
                                               bfloat16(run_bfloat16_dot), kInt4,
                                               of_4_bits(Format::kW4A8, run_w4a8_vnni)};
  return kernels_of(kBf16Table, format);
}
#endif

}  // namespace fusewire::FUSEWIRE_TARGET
