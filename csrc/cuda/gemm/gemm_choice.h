// Which implementation computes a product: our Hopper kernels in their configurations and what
// cuBLASLt suggests are timed against each other when a product is first seen on a stream that is
// tuning, and the fastest is kept in memory and in a file (gemm_choice_file.h).
//
// A product is known by its key: element type, n, k, a bucket of m, alignment and what the epilogue
// does. So a bucket of rows has one choice, made for the most rows that it takes, which stays while
// the process lives, and with the file from one process to the next. Whatever the choice, sums are
// fp32; ours are rounded once. cuBLASLt's are rounded before an activation that follows as a pass
// of its own, and most of them before a residual that is out itself (which torch adds so too); what
// else rounds twice is not chosen (gemm_rounding.h).
//
// fp32 is not timed and takes cuBLASLt's first suggestion: there the order of additions is most of
// the error, the fastest kernels add in the longest chains, and the library weighs that.
//
// Timing waits for the stream and takes some tens of milliseconds, so it happens while a model
// loads, which runs once with as many rows as each bucket has (row_buckets), outside of graph
// capture. On a stream that is not tuning nothing is timed: an unknown key takes the choice of the
// nearest bucket, or cuBLASLt's first suggestion. FUSEWIRE_GEMM_TIMING=0 in the environment: no
// stream is timed on.
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
  // activation | bias << 3 | residual << 4 | residual is out << 5 | weight transposed << 6 | x and
  // weight are e4m3 << 7 | they are int8 << 8 | they are e4m3 in blocks << 9
  uint16_t epilogue = 0;
  uint8_t read_alignment = 16, write_alignment = 16;  // bytes, 16 at most
  int64_t n = 0, k = 0;
  int64_t rows = 0;  // gemm_bucket(m)

  // Buckets of a product are neighbours.
  auto product() const { return std::tie(dtype, epilogue, read_alignment, write_alignment, n, k); }
  bool operator<(const GemmKey& other) const {
    return product() != other.product() ? product() < other.product() : rows < other.rows;
  }
};

enum class GemmKernel : uint8_t { kPlain, kCublaslt, kSm90 };

struct GemmChoice {
  GemmKernel kernel = GemmKernel::kPlain;
  int32_t configuration = 0;    // of kSm90
  CublasltAlgorithm algorithm;  // of kCublaslt
  uint64_t nanoseconds = 0;     // as timed; 0: not timed
  bool settled = false;         // it stays; else it is a guess until it can be timed
};

using GemmChoices = std::map<GemmKey, GemmChoice>;

// The timed choice of the same product for the nearest bucket, at most four times as many rows or
// a quarter; null: there is none.
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

// Computes the product as chosen; false, with nothing launched, when the choice cannot compute it.
template <class T>
bool run_gemm(const GemmArguments& a, const GemmChoice& choice, const Stream& stream);

}  // namespace fusewire::cuda
