#include "core/gemm.h"

#include <algorithm>

namespace fusewire {
namespace {

struct Feature {
  const char* name;
  bool GemmFeatures::* known;
  bool (*asked)(const GemmArguments& a);
};

constexpr Feature kFeatures[] = {
    {"a transposed x", &GemmFeatures::transposed_x,
     [](const GemmArguments& a) { return a.x.transposed; }},
    {"a transposed weight", &GemmFeatures::transposed_weight,
     [](const GemmArguments& a) { return a.weight.transposed; }},
    {"scales", &GemmFeatures::scales,
     [](const GemmArguments& a) { return a.x.scales || a.weight.scales; }},
    {"zeros", &GemmFeatures::zeros,
     [](const GemmArguments& a) { return a.x.zeros || a.weight.zeros; }},
    {"groups", &GemmFeatures::groups,
     [](const GemmArguments& a) { return a.x.group || a.weight.group; }},
    {"an order of inputs", &GemmFeatures::order,
     [](const GemmArguments& a) { return a.weight.order != nullptr; }},
    {"a beta other than 1", &GemmFeatures::beta,
     [](const GemmArguments& a) { return a.beta != 1.0f; }},
    {"a gated unit", &GemmFeatures::gated,
     [](const GemmArguments& a) { return a.both != nullptr; }},
};

constexpr int64_t kLargestBucket = 65536;

}  // namespace

std::vector<int64_t> row_buckets(const GemmKernels& kernels, int64_t max_rows) {
  std::vector<int64_t> found;
  for (int64_t m = 1; kernels.bucket && m <= max_rows; m = found.back() + 1) {
    found.push_back(std::min(kernels.bucket(m), max_rows));
  }
  return found;
}

int64_t gemm_bucket(int64_t m) {
  if (m <= 1) return 1;
  if (m > kLargestBucket) return kLargestBucket * 2;
  const int parts = m > 16384 ? 4 : m > 1024 ? 16 : 8;
  int64_t step = 8;
  while (step * parts * 2 < m) step *= 2;
  return (m + step - 1) / step * step;
}

void check_features(const GemmKernels& kernels, const GemmArguments& a, Device device) {
  for (const Feature& feature : kFeatures) {
    if (!(kernels.features.*feature.known) && feature.asked(a)) {
      fail("gemm: got ", feature.name, ", which the kernels for ", name_of(kernels.format),
           " weights on ", device.text(), " do not compute; leave it out, or use another device");
    }
  }
}

}  // namespace fusewire
