// Chooses the implementation of a matrix product. When a product is first seen on a stream that is
// tuning, the configurations of our Hopper kernels and the algorithms that cuBLASLt suggests are
// timed. The fastest is kept in memory and in a file (gemm_choice_file.h).
//
// The key of a product is its element type, n, k, a bucket of m, the alignment and the epilogue. A
// bucket of rows therefore has one choice, made for its largest number of rows. The choice does not
// change while the process lives nor, with the file, from one process to the next. Every choice
// accumulates in fp32. Our kernels round once. cuBLASLt's round before an activation that is a
// separate pass, before a gated unit, and most of them before a residual that is out itself (torch
// adds it in the same way). Other algorithms that round twice are not chosen (gemm_rounding.h).
//
// fp32 is not timed and uses cuBLASLt's first suggestion: there the order of additions causes most
// of the error, the fastest kernels add in the longest chains, and the library takes this into
// account.
//
// Timing synchronises the stream and takes some tens of milliseconds, or some tenths of a second
// for long products of full steps. It happens while a model loads, outside of graph capture: the
// model runs once with the number of rows of each bucket (row_buckets). On a stream that is not
// tuning nothing is timed: an unknown key uses the choice of the nearest bucket, or cuBLASLt's
// first suggestion. With FUSEWIRE_GEMM_TIMING=0 in the environment nothing is timed on any stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "core/dtype.h"
#include "cuda/gemm/cublaslt_gemm.h"

namespace fusewire::cuda {

struct GemmKey {
  DType dtype = DType::kFloat32;
  // activation | bias << 3 | residual << 4 | residual is out << 5 | weight transposed << 6 |
  // operands are e4m3 << 7 | operands are int8 << 8 | operands are e4m3 in blocks << 9 |
  // gated unit << 10
  uint16_t epilogue = 0;
  uint8_t read_alignment = 16, write_alignment = 16;  // in bytes, at most 16
  int64_t n = 0, k = 0;
  int64_t rows = 0;  // gemm_bucket(m)

  // Keys are ordered such that the buckets of a product are neighbours.
  auto product() const { return std::tie(dtype, epilogue, read_alignment, write_alignment, n, k); }
  bool operator<(const GemmKey& other) const {
    return product() != other.product() ? product() < other.product() : rows < other.rows;
  }
};

enum class GemmKernel : uint8_t { kPlain, kCublaslt, kSm90 };

struct GemmChoice {
  GemmKernel kernel = GemmKernel::kPlain;
  int32_t configuration = 0;    // for kSm90
  CublasltAlgorithm algorithm;  // for kCublaslt
  uint64_t nanoseconds = 0;     // as timed; 0: not timed
  bool settled = false;         // false: a guess until the product can be timed
};

using GemmChoices = std::map<GemmKey, GemmChoice>;

// Returns the timed choice of the same product for the nearest bucket, of at most four times as
// many rows and at least a quarter; null if there is none.
inline const GemmChoice* nearest_choice(const GemmChoices& choices, const GemmKey& key) {
  const GemmChoice* nearest = nullptr;
  double distance = 4.0;
  GemmKey first = key;
  first.rows = 0;
  for (auto at = choices.lower_bound(first); at != choices.end(); ++at) {
    if (at->first.product() != key.product()) break;
    const auto [fewer, more] = std::minmax(at->first.rows, key.rows);
    const double away = static_cast<double>(more) / static_cast<double>(fewer);
    if (!at->second.settled || away > distance) continue;
    nearest = &at->second;
    distance = away;
  }
  return nearest;
}

template <class T>
GemmChoice choose_gemm(const GemmArguments& a, const Stream& stream);

// Computes the product as chosen. Returns false, without a launch, if the choice cannot compute it.
template <class T>
bool run_gemm(const GemmArguments& a, const GemmChoice& choice, const Stream& stream);

}  // namespace fusewire::cuda
