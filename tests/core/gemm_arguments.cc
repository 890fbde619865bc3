// check FEATURE KNOWN: checks a product that asks for one feature with kernels that compute it
// (KNOWN 1) or not; prints the error. buckets MAX_ROWS: prints row_buckets. bucket ROWS: its edge.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/gemm.h"

using namespace fusewire;

namespace {

const float kNumber = 2.0f;
const int32_t kInput = 0;

// A product that asks for the feature, and marks it as known.
GemmArguments asking_for(const std::string& feature, GemmFeatures& known) {
  GemmArguments a;
  if (feature == "transposed_x") a.x.transposed = known.transposed_x = true;
  if (feature == "transposed_weight") a.weight.transposed = known.transposed_weight = true;
  if (feature == "scales_of_x") a.x.scales = &kNumber;
  if (feature == "scales") a.weight.scales = &kNumber;
  if (feature.rfind("scales", 0) == 0) known.scales = true;
  if (feature == "zeros") a.weight.zeros = &kNumber, known.zeros = true;
  if (feature == "groups") a.weight.group = 32, known.groups = true;
  if (feature == "order") a.weight.order = &kInput, known.order = true;
  if (feature == "beta") a.beta = 0.5f, known.beta = true;
  return a;
}

}  // namespace

int main(int, char** words) {
  const std::string command = words[1];
  GemmKernels kernels = {Format::kFloat16, {},      false,   false,
                         nullptr,          nullptr, nullptr, gemm_bucket};
  if (command == "check") {
    GemmFeatures known;
    const GemmArguments a = asking_for(words[2], known);
    if (words[3][0] == '1') kernels.features = known;
    try {
      check_features(kernels, a, Device{DeviceType::kCuda, 1});
    } catch (const Error& error) {
      std::puts(error.what());
    }
  } else if (command == "buckets") {
    for (const int64_t rows : row_buckets(kernels, std::atoll(words[2]))) {
      std::printf("%lld ", static_cast<long long>(rows));
    }
  } else {
    std::printf("%lld", static_cast<long long>(gemm_bucket(std::atoll(words[2]))));
  }
}
