// The library's only exception. Callers decide by its kind, never by its text. A message says what
// was wrong, what was given, what was wanted and what to do; it is built only when something fails.
// No iostreams: they would bring the process's locale into messages and into a shared library.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace fusewire {

enum class ErrorKind {
  kInvalid,      // an invalid argument, or an unsupported combination
  kOutOfMemory,  // of a device or the host, or over a cap: a smaller request may succeed
  kDevice,       // the device or its driver failed
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

namespace detail {

template <class Part>
void append(std::string& text, const Part& part) {
  if constexpr (std::is_floating_point_v<Part>) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%g", static_cast<double>(part));
    text += digits;
  } else if constexpr (std::is_arithmetic_v<Part>) {
    text += std::to_string(part);
  } else {
    text += std::string_view(part);
  }
}

}  // namespace detail

template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail_as(ErrorKind kind, const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  throw Error(kind, text);
}

template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail(const Parts&... parts) {
  fail_as(ErrorKind::kInvalid, parts...);
}

// Throws kOutOfMemory for `who`, a device or the host. Hugging Face's Trainer retries with a
// smaller batch after an error whose text contains " out of memory." (accelerate's
// should_reduce_batch_size).
template <class Who, class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail_out_of_memory(const Who& who,
                                                                     const Parts&... parts) {
  fail_as(ErrorKind::kOutOfMemory, who, " is out of memory. ", parts...);
}

}  // namespace fusewire
