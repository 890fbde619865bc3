#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cuda/gemm/gemm_choice_file.h"

namespace fusewire::cuda {
namespace {

constexpr const char* kHeader =
    "# fusewire: timed matrix products. Delete the file to have them timed again.\n"
    "# dtype n k rows epilogue read write kernel configuration algorithm workspace apart "
    "nanoseconds checksum\n";
constexpr int kLine = 512;

std::string folder() {
  if (const char* own = std::getenv("FUSEWIRE_CACHE")) return own;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache) return std::string(cache) + "/fusewire";
  const char* home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.cache/fusewire" : std::string();
}

// FNV-1a: a line that was truncated or edited by hand is ignored.
uint32_t checksum(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

// Numbers are integers, so that no locale changes how they are written.
std::string line_of(const GemmKey& key, const GemmChoice& choice) {
  char text[kLine];
  int used = std::snprintf(
      text, sizeof(text), "%d %" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %d %d ",
      static_cast<int>(key.dtype), key.n, key.k, key.rows, key.epilogue, key.read_alignment,
      key.write_alignment, static_cast<int>(choice.kernel), choice.configuration);
  for (const uint64_t word : choice.algorithm.words) {
    used += std::snprintf(text + used, sizeof(text) - used, "%016" PRIx64, word);
  }
  used += std::snprintf(text + used, sizeof(text) - used, " %" PRIu64 " %d %" PRIu64,
                        choice.algorithm.workspace_bytes, choice.algorithm.activation_apart,
                        choice.nanoseconds);
  std::string line(text, static_cast<size_t>(used));
  std::snprintf(text, sizeof(text), " %08" PRIx32 "\n", checksum(line));
  return line + text;
}

bool parse(const std::string& line, GemmKey& key, GemmChoice& choice) {
  const size_t end = line.rfind(' ');
  if (end == std::string::npos) return false;
  uint32_t sum = 0;
  if (std::sscanf(line.c_str() + end, "%" SCNx32, &sum) != 1) return false;
  if (sum != checksum(std::string_view(line).substr(0, end))) return false;
  int dtype, epilogue, read, write, kernel, apart;
  char words[129] = {};
  if (std::sscanf(line.c_str(),
                  "%d %" SCNd64 " %" SCNd64 " %" SCNd64 " %d %d %d %d %d %128s %" SCNu64
                  " %d %" SCNu64,
                  &dtype, &key.n, &key.k, &key.rows, &epilogue, &read, &write, &kernel,
                  &choice.configuration, words, &choice.algorithm.workspace_bytes, &apart,
                  &choice.nanoseconds) != 13) {
    return false;
  }
  for (int i = 0; i < 8; ++i) {
    if (std::sscanf(words + 16 * i, "%16" SCNx64, &choice.algorithm.words[i]) != 1) return false;
  }
  key.dtype = static_cast<DType>(dtype);
  key.epilogue = static_cast<uint16_t>(epilogue);
  key.read_alignment = static_cast<uint8_t>(read);
  key.write_alignment = static_cast<uint8_t>(write);
  choice.kernel = static_cast<GemmKernel>(kernel);
  choice.algorithm.activation_apart = apart != 0;
  choice.settled = true;
  return true;
}

}  // namespace

GemmChoiceFile::GemmChoiceFile(std::string_view name) {
  const std::string in = folder();
  if (in.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(in, error);
  if (error) return;
  path_ = in + "/gemm-";
  for (const char c : name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    path_ += plain ? c : '-';
  }
  path_ += ".txt";
}

GemmChoiceFile::Turn::Turn(const GemmChoiceFile& file) {
  if (file.path_.empty()) return;
  lock_ = open((file.path_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  // The lock is released when its process ends, however it ends.
  while (lock_ >= 0 && flock(lock_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

GemmChoiceFile::Turn::~Turn() {
  if (lock_ >= 0) close(lock_);
}

GemmChoices GemmChoiceFile::read() const {
  GemmChoices choices;
  std::FILE* file = path_.empty() ? nullptr : std::fopen(path_.c_str(), "re");
  if (!file) return choices;
  char text[kLine];
  while (std::fgets(text, sizeof(text), file)) {
    GemmKey key;
    GemmChoice choice;
    if (parse(text, key, choice)) choices[key] = choice;
  }
  std::fclose(file);
  return choices;
}

void GemmChoiceFile::write(const GemmChoices& choices) const {
  if (path_.empty()) return;
  GemmChoices all = choices;
  all.merge(read());
  const std::string draft = path_ + "." + std::to_string(getpid());
  std::FILE* file = std::fopen(draft.c_str(), "we");
  if (!file) return;
  bool good = std::fputs(kHeader, file) >= 0;
  for (const auto& [key, choice] : all) {
    if (choice.nanoseconds) good = std::fputs(line_of(key, choice).c_str(), file) >= 0 && good;
  }
  good = std::fclose(file) == 0 && good;
  if (!good || std::rename(draft.c_str(), path_.c_str()) != 0) std::remove(draft.c_str());
}

}  // namespace fusewire::cuda
