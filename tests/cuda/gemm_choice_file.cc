// What test_gemm_choice_file.py runs: each command in a process of its own.
#include "cuda/gemm/gemm_choice_file.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

using namespace fusewire::cuda;

namespace {

GemmChoice choice_of(int64_t rows) {
  GemmChoice choice;
  choice.kernel = rows % 2 ? GemmKernel::kSm90 : GemmKernel::kCublaslt;
  choice.configuration = static_cast<int>(rows);
  choice.nanoseconds = 1000 + static_cast<uint64_t>(rows);
  for (int i = 0; i < 8; ++i) {
    choice.algorithm.words[i] = 0xfedcba9876543210ull * static_cast<uint64_t>(rows + i);
  }
  choice.algorithm.workspace_bytes = static_cast<size_t>(rows) * 1024;
  choice.algorithm.activation_apart = rows % 3 == 0;
  return choice;
}

GemmKey key_of(int64_t rows) {
  GemmKey key;
  key.dtype = fusewire::DType::kFloat16;
  key.epilogue = 0x38;
  key.write_alignment = 2;
  key.n = 2304;
  key.k = 768;
  key.rows = rows;
  return key;
}

bool same(const GemmChoice& a, const GemmChoice& b) {
  return a.kernel == b.kernel && a.configuration == b.configuration &&
         a.nanoseconds == b.nanoseconds && a.settled &&
         !std::memcmp(a.algorithm.words, b.algorithm.words, sizeof(a.algorithm.words)) &&
         a.algorithm.workspace_bytes == b.algorithm.workspace_bytes &&
         a.algorithm.activation_apart == b.algorithm.activation_apart;
}

}  // namespace

// path | write FIRST LAST | slowly ROWS | nearest ROWS | read: prints how many are there as they
// were written
int main(int, char** words) {
  const GemmChoiceFile file("a GPU, cublas 13.1");
  const std::string command = words[1];
  if (command == "path") {
    std::puts(file.path().c_str());
  } else if (command == "write") {
    GemmChoices choices;
    for (int64_t rows = std::atoi(words[2]); rows <= std::atoi(words[3]); ++rows) {
      choices[key_of(rows)] = choice_of(rows);
    }
    file.write(choices);
  } else if (command == "slowly") {  // as a process that times: read, work, write
    const GemmChoiceFile::Turn alone(file);
    GemmChoices choices = file.read();
    usleep(50'000);
    const int64_t rows = std::atoi(words[2]);
    choices[key_of(rows)] = choice_of(rows);
    file.write(choices);
  } else if (command == "nearest") {  // of choices for 8, 64 and 4096 rows; that for 72 is a guess
    GemmChoices choices;
    for (const int64_t rows : {8, 64, 72, 4096}) {
      choices[key_of(rows)] = choice_of(rows);
      choices[key_of(rows)].settled = rows != 72;
    }
    GemmKey other = key_of(80);
    other.n = 8;
    choices[other] = choice_of(80);
    choices[other].settled = true;
    const GemmChoice* found = nearest_choice(choices, key_of(std::atoi(words[2])));
    std::printf("%d\n", found ? found->configuration : 0);
  } else {
    int whole = 0;
    for (const auto& [key, choice] : file.read()) {
      whole += key.product() == key_of(key.rows).product() && same(choice, choice_of(key.rows));
    }
    std::printf("%d\n", whole);
  }
}
