// Texts as clients send them.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace utf8 {

// -1: it is not UTF-8.
int64_t characters(const unsigned char* text, size_t bytes);

}  // namespace utf8
