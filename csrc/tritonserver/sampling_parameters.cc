#include "tritonserver/sampling_parameters.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <utility>

namespace sampling_parameters {
namespace {

struct Number {
  const char* name;
  double least, most;
  bool whole;
  bool or_0 = false;
};
// Ranges within those that backend/fusewire/generation accepts for any model.
constexpr Number numbers[] = {
    {"max_new_tokens", 1, 1e9, true},
    {"max_tokens", 1, 1e9, true},
    {"timeout_seconds", 1e-3, 86400, false},
    {"priority", -1000, 1000, true},
    {"temperature", 1e-3, 100, false, true},
    {"top_p", 1e-6, 1, false},
    {"min_p", 0, 1, false},
    {"seed", 0, 1e15, true},
    {"n", 1, 1, true},
    {"repetition_penalty", 0.01, 100, false},
    {"presence_penalty", -2, 2, false},
    {"frequency_penalty", -2, 2, false},
};
constexpr const char* flags[] = {"ignore_eos", "do_sample", "skip_special_tokens"};
constexpr size_t most_bytes = 1024;

class Reader {
 public:
  explicit Reader(std::string text) : text_(std::move(text)) {}

  bool object(Given* given) {
    if (!taken('{')) return false;
    if (!taken('}')) {
      do {
        if (!member(given)) return false;
      } while (taken(','));
      if (!taken('}')) return false;
    }
    space();
    return at_ == text_.size();
  }

 private:
  bool member(Given* given) {
    std::string name;
    if (!string(&name) || !taken(':')) return false;
    unsigned index = 0;
    for (const Number& each : numbers) {
      if (name == each.name) {
        double value;
        if (!once(index) || !number(each, &value)) return false;
        take(index, value, given);
        return true;
      }
      ++index;
    }
    for (const char* each : flags) {
      if (name == each) return once(index) && (word("true") || word("false"));
      ++index;
    }
    return false;
  }

  static void take(unsigned index, double value, Given* given) {
    if (index < 2) given->new_tokens = static_cast<uint64_t>(value);
    if (index == 2) given->timeout_s = value;
    if (index == 3) {
      given->has_priority = true;
      given->priority = static_cast<int64_t>(value);
    }
  }

  // The first two numbers are two names of the same one.
  bool once(unsigned index) {
    const unsigned bit = 1u << (index < 2 ? 0 : index);
    const bool first = (seen_ & bit) == 0;
    seen_ |= bit;
    return first;
  }

  // Strings have no escapes, because no name has any.
  bool string(std::string* value) {
    if (!taken('"')) return false;
    const size_t end = text_.find('"', at_);
    if (end == std::string::npos) return false;
    *value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }

  bool number(const Number& number, double* value) {
    space();
    const size_t begin = at_, sign = text_[at_] == '-' ? 1 : 0;
    const size_t digits = behind_digits(begin + sign) - begin - sign;
    if (digits < 1 || digits > 15 || (digits > 1 && text_[begin + sign] == '0')) return false;
    at_ = begin + sign + digits;
    if (!number.whole && text_[at_] == '.') {
      const size_t behind = behind_digits(at_ + 1);
      if (behind == at_ + 1) return false;
      at_ = behind;
    }
    *value = strtod(text_.c_str() + begin, nullptr);
    const bool allowed = *value >= number.least && *value <= number.most;
    if (!allowed && !(number.or_0 && *value == 0)) return false;
    return true;
  }

  bool word(const char* expected) {
    space();
    if (text_.compare(at_, strlen(expected), expected) != 0) return false;
    at_ += strlen(expected);
    return true;
  }

  bool taken(char expected) {
    space();
    if (text_[at_] != expected) return false;
    ++at_;
    return true;
  }

  size_t behind_digits(size_t from) const {
    return std::min(text_.find_first_not_of("0123456789", from), text_.size());
  }

  void space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  const std::string text_;  // ends with a 0
  size_t at_ = 0;
  unsigned seen_ = 0;
};

}  // namespace

bool read(const char* text, size_t bytes, Given* given) {
  *given = {};
  if (bytes > most_bytes || memchr(text, 0, bytes) != nullptr) return false;
  return Reader(std::string(text, bytes)).object(given);
}

}  // namespace sampling_parameters
