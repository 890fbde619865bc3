// Timed choices of one kind of GPU, kept on disk: $FUSEWIRE_CACHE, $XDG_CACHE_HOME/fusewire or
// ~/.cache/fusewire, a text file for each GPU name, version of cuBLASLt and set of our kernels.
// Where no file can be written (or FUSEWIRE_CACHE is empty) choices live in memory alone.
#pragma once

#include <string>
#include <string_view>

#include "cuda/gemm/gemm_choice.h"

namespace fusewire::cuda {

class GemmChoiceFile {
 public:
  // `name` says for what the choices hold; characters that do not suit a file's name are replaced.
  explicit GemmChoiceFile(std::string_view name);

  // While one lives, other processes wait for theirs: instances that load together would disturb
  // each other's timings. Where there is no file nobody waits.
  class Turn {
   public:
    explicit Turn(const GemmChoiceFile& file);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    int lock_ = -1;
  };

  // What the file holds now; a line that is damaged is left out.
  GemmChoices read() const;
  // Writes `choices` and what other processes have added since. The file changes at once, as a
  // whole; without a turn, of two processes that write together one may lose its news.
  void write(const GemmChoices& choices) const;

  const std::string& path() const { return path_; }  // empty: none

 private:
  std::string path_;
};

}  // namespace fusewire::cuda
