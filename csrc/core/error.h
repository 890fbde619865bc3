// The library's one exception. A message says what was wrong, what arrived, what was wanted and
// what to do; its text is built only when something fails (formatting eagerly costs ~2 us a call).
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace fusewire {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(text.str());
}

}  // namespace fusewire
