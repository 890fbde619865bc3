// Timed choices of one kind of GPU on disk, in $FUSEWIRE_CACHE, $XDG_CACHE_HOME/fusewire or
// ~/.cache/fusewire: a text file per GPU name, version of cuBLASLt and set of our kernels. If no
// file can be written (or FUSEWIRE_CACHE is empty), choices are kept in memory only.
#pragma once

#include <string>
#include <string_view>

#include "cuda/gemm/gemm_choice.h"

namespace fusewire::cuda {

class GemmChoiceFile {
 public:
  // `name` says what the choices are valid for; characters that do not suit a file name are
  // replaced.
  explicit GemmChoiceFile(std::string_view name);

  // While a Turn exists, other processes wait for theirs: instances that load at the same time
  // would disturb each other's timings. Without a file no process waits.
  class Turn {
   public:
    explicit Turn(const GemmChoiceFile& file);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    int lock_ = -1;
  };

  // Returns the choices in the file. Damaged lines are skipped.
  GemmChoices read() const;
  // Writes `choices` and what other processes have added since. The file is replaced atomically. If
  // two processes write at the same time without a turn, the choices of one may be lost.
  void write(const GemmChoices& choices) const;

  const std::string& path() const { return path_; }  // empty: no file

 private:
  std::string path_;
};

}  // namespace fusewire::cuda
