#include "tritonserver/utf8.h"

namespace utf8 {

int64_t characters(const unsigned char* text, size_t bytes) {
  int64_t count = 0;
  for (size_t at = 0; at < bytes; ++count) {
    const unsigned char first = text[at];
    const size_t more = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || bytes - at <= more) return -1;
    uint32_t code = more == 0 ? first : first & (0x3f >> more);
    for (size_t next = 1; next <= more; ++next) {
      if ((text[at + next] & 0xc0) != 0x80) return -1;
      code = code << 6 | (text[at + next] & 0x3f);
    }
    constexpr uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    if (code < least[more] || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return -1;
    at += 1 + more;
  }
  return count;
}

}  // namespace utf8
