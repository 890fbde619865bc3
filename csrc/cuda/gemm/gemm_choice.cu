#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cuda/element.h"
#include "cuda/gemm/gemm_choice.h"
#include "cuda/gemm/gemm_choice_file.h"
#include "cuda/gemm/gemm_timing.h"
#include "cuda/gemm/sm90_gemm.h"
#include "cuda/launch.h"

namespace fusewire::cuda {
namespace {

// Part of the file's name. Raise it when the meaning of a key, the way of timing or a kernel
// changes.
constexpr int kVersion = 11;
constexpr int kSuggestions = 18;  // by cuBLASLt
// The most rows that are timed: beyond them there are many waves of blocks, and the ranking stays
// the same.
constexpr int64_t kMostRowsTimed = 32768;

template <class T>
constexpr bool kTimed = !std::is_same_v<T, float>;

bool timing_allowed() {
  static const bool allowed = [] {
    const char* set = std::getenv("FUSEWIRE_GEMM_TIMING");
    return !set || std::string_view(set) != "0";
  }();
  return allowed;
}

// The choices of one device.
struct Known {
  explicit Known(int index) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index), "device properties");
    hopper = properties.major == 9;
    file = std::make_unique<GemmChoiceFile>(
        std::string(properties.name) + " cublas " + std::to_string(cublaslt_version()) + " sm90 " +
        std::to_string(hopper ? sm90_gemm_configurations() : 0) + " v" + std::to_string(kVersion));
    choices = file->read();
  }

  bool hopper = false;
  std::unique_ptr<GemmChoiceFile> file;
  std::shared_mutex mutex;  // guards choices
  GemmChoices choices;
};

Known& known(const Stream& stream) {
  constexpr int kDevices = 64;
  static std::once_flag made[kDevices];
  static Known* devices[kDevices];  // never freed
  const int index = stream.device.index;
  if (index < 0 || index >= kDevices) fail("device: got ", index, ", wanted 0 to ", kDevices - 1);
  std::call_once(made[index], [&] { devices[index] = new Known(index); });
  return *devices[index];
}

template <class T>
GemmKey key_of(const GemmArguments& a) {
  constexpr int64_t kSize = sizeof(T);
  GemmKey key;
  key.dtype = kDTypeOf<T>;
  const bool float8 = a.x.scales && !a.integers && !a.blocks;
  key.epilogue = static_cast<uint16_t>(static_cast<int>(a.activation) | (a.bias != nullptr) << 3 |
                                       (a.residual != nullptr) << 4 | (a.residual == a.out) << 5 |
                                       a.weight.transposed << 6 | float8 << 7 | a.integers << 8 |
                                       a.blocks << 9 | (a.both != nullptr) << 10);
  const int64_t operand = operand_bytes<T>(a);
  int read = std::min(alignment_of(a.x.data, a.x.stride * operand),
                      alignment_of(a.weight.data, a.weight.stride * operand));
  int write = alignment_of(a.out, a.out_stride * kSize);
  if (a.residual) write = std::min(write, alignment_of(a.residual, a.residual_stride * kSize));
  if (a.both) write = std::min(write, alignment_of(a.both, a.both_stride * kSize));
  key.read_alignment = static_cast<uint8_t>(read);
  key.write_alignment = static_cast<uint8_t>(write);
  key.n = a.n;
  key.k = a.k;
  key.rows = gemm_bucket(a.m);
  return key;
}

bool capturing(const Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  // The default stream must not even be queried while another stream is captured.
  if (cudaStreamIsCapturing(handle(stream), &status) != cudaSuccess) cudaGetLastError();
  return status != cudaStreamCaptureStatusNone;
}

GemmChoice by_cublaslt(const CublasltAlgorithm& algorithm) {
  GemmChoice choice;
  choice.kernel = GemmKernel::kCublaslt;
  choice.algorithm = algorithm;
  return choice;
}

bool sm90_can(const GemmArguments& a, const GemmChoice& choice) {
  return choice.kernel == GemmKernel::kSm90 && choice.configuration >= 0 &&
         choice.configuration < sm90_gemm_configurations() &&
         sm90_gemm_fits(a, choice.configuration);
}

GemmChoice by_sm90(int configuration) {
  GemmChoice choice;
  choice.kernel = GemmKernel::kSm90;
  choice.configuration = configuration;
  return choice;
}

// Returns cuBLASLt's first suggestion or, for quantised operands that it does not support, our
// first kernel that fits.
template <class T>
GemmChoice first_suggestion(const GemmArguments& a, bool hopper, const Stream& stream) {
  const auto suggested = cublaslt_algorithms<T>(a, 1, Rounding::kOnce, stream);
  if (!suggested.empty()) return by_cublaslt(suggested[0]);
  const int own = hopper && a.x.scales ? first_sm90_configuration(a) : -1;
  return own >= 0 ? by_sm90(own) : GemmChoice{};
}

// Returns every choice that may compute the product, in the order of preference among equals.
template <class T>
std::vector<GemmChoice> candidates(const GemmArguments& a, bool hopper, const Stream& stream) {
  std::vector<GemmChoice> all;
  for (int i = 0; hopper && i < sm90_gemm_configurations(); ++i) {
    if (sm90_gemm_fits(a, i)) all.push_back(by_sm90(i));
  }
  const auto suggested = cublaslt_algorithms<T>(a, kSuggestions, Rounding::kUnknown, stream);
  // Algorithms without a workspace come first: a workspace takes memory and usually a second
  // launch.
  for (const bool workspace : {false, true}) {
    for (const CublasltAlgorithm& algorithm : suggested) {
      if ((algorithm.workspace_bytes > 0) == workspace) all.push_back(by_cublaslt(algorithm));
    }
  }
  return all;
}

// One product is timed at a time, whatever its type: timing needs the device and the file for
// itself.
std::mutex& timing_turn() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// Times the product, unless another thread or process has done so in the meantime.
template <class T>
GemmChoice settle(Known& device, const GemmKey& key, const GemmArguments& a, const Stream& stream) {
  std::lock_guard turn(timing_turn());
  const GemmChoiceFile::Turn alone(*device.file);
  const GemmChoices of_others = device.file->read();
  {
    std::unique_lock lock(device.mutex);
    for (const auto& [other, theirs] : of_others) {
      GemmChoice& ours = device.choices[other];
      if (!ours.settled) ours = theirs;
    }
    const auto found = device.choices.find(key);
    if (found != device.choices.end() && found->second.settled) return found->second;
  }
  // The sample has as many rows as the bucket: if a tile size divides fewer rows into whole waves
  // of blocks, it may need one more wave for these.
  GemmArguments sample = a;
  sample.m = std::min(key.rows, kMostRowsTimed);
  const auto all = candidates<T>(sample, device.hopper, stream);
  GemmChoice choice;
  if (const auto best = all.size() > 1 ? time_gemm<T>(sample, all, stream) : std::nullopt) {
    choice = *best;
  } else if (all.size() == 1) {
    choice = all[0];
  } else {
    choice = first_suggestion<T>(a, device.hopper, stream);
  }
  choice.settled = true;
  std::unique_lock lock(device.mutex);
  device.choices[key] = choice;
  const GemmChoices copy = device.choices;
  lock.unlock();
  if (choice.nanoseconds) device.file->write(copy);
  return choice;
}

}  // namespace

template <class T>
bool run_gemm(const GemmArguments& a, const GemmChoice& choice, const Stream& stream) {
  if (choice.kernel == GemmKernel::kCublaslt) return cublaslt_gemm<T>(a, choice.algorithm, stream);
  if constexpr (kTimed<T>) {
    if (sm90_can(a, choice)) {
      sm90_gemm<T>(a, choice.configuration, stream);
      return true;
    }
  }
  return false;
}

template <class T>
GemmChoice choose_gemm(const GemmArguments& a, const Stream& stream) {
  Known& device = known(stream);
  const GemmKey key = key_of<T>(a);
  std::optional<GemmChoice> guess;
  {
    std::shared_lock lock(device.mutex);
    const auto found = device.choices.find(key);
    if (found != device.choices.end()) guess = found->second;
  }
  if (guess && guess->settled) return *guess;
  if constexpr (kTimed<T>) {
    if (stream.tuning && timing_allowed() && !capturing(stream)) {
      return settle<T>(device, key, a, stream);
    }
  }
  if (guess) return *guess;
  if constexpr (kTimed<T>) {
    std::shared_lock lock(device.mutex);
    if (const GemmChoice* near = nearest_choice(device.choices, key)) {
      guess = *near;
      guess->nanoseconds = 0;  // it was timed for another bucket
    }
  }
  if (!guess || (guess->kernel == GemmKernel::kSm90 && !sm90_can(a, *guess))) {
    guess = first_suggestion<T>(a, device.hopper, stream);
  }
  guess->settled = !kTimed<T>;
  std::unique_lock lock(device.mutex);
  return device.choices.emplace(key, *guess).first->second;
}

#define INSTANTIATE(T)                                                     \
  template GemmChoice choose_gemm<T>(const GemmArguments&, const Stream&); \
  template bool run_gemm<T>(const GemmArguments&, const GemmChoice&, const Stream&);
FUSEWIRE_FOR_EACH_FLOAT(INSTANTIATE)
#undef INSTANTIATE

}  // namespace fusewire::cuda
