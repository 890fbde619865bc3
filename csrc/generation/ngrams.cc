#include "generation/ngrams.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace fusewire {
namespace {

constexpr uint64_t kBase = 0x9e3779b97f4a7c15;  // odd, so that no token's weight vanishes

uint64_t number(int32_t token) {
  return static_cast<uint64_t>(token) + 1;
}

}  // namespace

GramKeys::GramKeys(int64_t length) : length_(length), oldest_(1) {
  for (int64_t i = 1; i < length; ++i) oldest_ *= kBase;
}

uint64_t GramKeys::of(const int32_t* end) const {
  uint64_t key = 0;
  for (const int32_t* token = end - length_; token != end; ++token) {
    key = key * kBase + number(*token);
  }
  return key;
}

uint64_t GramKeys::next(uint64_t key, const int32_t* end) const {
  if (length_ == 0) return key;
  return (key - number(end[-length_]) * oldest_) * kBase + number(*end);
}

NGrams::NGrams(std::vector<int32_t> text, int64_t n) : keys_(n - 1), text_(std::move(text)) {
  if (n < 1) fail("NGrams: n: got ", n, ", wanted 1 or more");
  const auto size = static_cast<int64_t>(text_.size());
  if (size < n) return;
  uint64_t key = keys_.of(text_.data() + n - 1);
  for (int64_t place = n - 1; place < size; ++place) {
    entries_.push_back({key, text_[static_cast<size_t>(place)], place});
    key = keys_.next(key, text_.data() + place);
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.key, a.follower, a.place) < std::tie(b.key, b.follower, b.place);
  });
  const auto equal = [this](const Entry& a, const Entry& b) {
    return a.key == b.key && a.follower == b.follower &&
           same(text_.data() + a.place, text_.data() + b.place);
  };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), equal), entries_.end());
  entries_.shrink_to_fit();
}

void NGrams::followers(const int32_t* end, int64_t before, std::vector<int32_t>& out) const {
  if (before < keys_.length()) return;
  const uint64_t key = keys_.of(end);
  auto entry =
      std::lower_bound(entries_.begin(), entries_.end(), key,
                       [](const Entry& each, uint64_t wanted) { return each.key < wanted; });
  for (; entry != entries_.end() && entry->key == key; ++entry) {
    if (same(text_.data() + entry->place, end)) out.push_back(entry->follower);
  }
}

bool NGrams::same(const int32_t* one, const int32_t* other) const {
  return std::equal(one - keys_.length(), one, other - keys_.length());
}

}  // namespace fusewire
