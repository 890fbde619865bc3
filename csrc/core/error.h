// The library's one exception. A message says what was wrong, what arrived, what was wanted and
// what to do; its text is built only when something fails, never on the way of a good call.
// No streams: they would bring the process's locale into messages and into a shared library.
#pragma once

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace fusewire {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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
[[noreturn]] __attribute__((noinline, cold)) void fail(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  throw Error(text);
}

}  // namespace fusewire
