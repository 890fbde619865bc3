// Two targets, one of which is forced by turns while other threads ask for kernels: each answer is
// one of the two. Prints ok.
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "core/kernels.h"

using namespace fusewire;

namespace {

bool usable() {
  return true;
}

const Kernels kSlow{}, kFast{};

}  // namespace

int main() {
  register_target({"slow", DeviceType::kCpu, 1, usable, DType::kFloat32, &kSlow});
  register_target({"fast", DeviceType::kCpu, 2, usable, DType::kFloat32, &kFast});
  if (&kernels_for(Device{}, DType::kFloat32) != &kFast) return 1;
  std::atomic<bool> over{false}, wrong{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!over) {
        const Kernels* found = &kernels_for(Device{}, DType::kFloat32);
        if (found != &kSlow && found != &kFast) wrong = true;
        if (cpu_targets().size() != 2 || cpu_target().size() != 4) wrong = true;
      }
    });
  }
  for (int i = 0; i < 2000; ++i) {
    const bool slow = i % 2;
    set_cpu_target(slow ? "slow" : "fast");
    // Nobody else forces a target: what this thread sees is what it asked for.
    if (&kernels_for(Device{}, DType::kFloat32) != (slow ? &kSlow : &kFast)) wrong = true;
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  if (wrong) return 2;
  std::puts("ok");
}
