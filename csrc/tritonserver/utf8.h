// Checks of texts that clients send.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace utf8 {

// Returns the number of characters; -1: the text is not UTF-8.
int64_t characters(const unsigned char* text, size_t bytes);

}  // namespace utf8
