// What a request asks for by its inputs, where these are plain: false of all that may be invalid.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

#include "tritonserver/admission_blocks.h"
#include "tritonserver/judgement.h"

enum DataType : int { BOOL = 1, INT64 = 9, FP32 = 11, BYTES = 13 };  // of tritonserver.h

namespace request_inputs {

struct Input {
  std::string name;
  DataType type;
  std::vector<int64_t> shape;
  const unsigned char* base = nullptr;
  size_t bytes = 0;
  int parts = 0;
};

// Of an encoder: a column of texts in UTF-8, perhaps with its pairs, or ids, or images, or pixels.
bool read(const std::vector<Input>& inputs, const admission::Judged& by, admission::Asked* asked);

// A prompt with simple `sampling_parameters`, which say how much is generated after it.
bool read_generation(const std::vector<Input>& inputs, admission::Asked* asked);

// Calls `row(index, bytes, size)` for each string until it returns false.
template <typename Row>
bool each_string(const Input& input, size_t count, Row row) {
  size_t at = 0;
  for (size_t index = 0; index < count; ++index) {
    uint32_t length;
    if (input.bytes - at < sizeof length) return false;
    memcpy(&length, input.base + at, sizeof length);
    at += sizeof length;
    if (input.bytes - at < length || !row(index, input.base + at, length)) return false;
    at += length;
  }
  return at == input.bytes;
}

}  // namespace request_inputs
