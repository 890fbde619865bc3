// Reads what a request asks for from its inputs, if these are plain. The functions return false for
// all that may be invalid.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

#include "tritonserver/admission_blocks.h"
#include "tritonserver/judgement.h"

enum DataType : int { BOOL = 1, INT64 = 9, FP32 = 11, BYTES = 13 };  // as in tritonserver.h

namespace request_inputs {

struct Input {
  std::string name;
  DataType type;
  std::vector<int64_t> shape;
  const unsigned char* base = nullptr;
  size_t bytes = 0;
  int parts = 0;
};

// Reads the inputs of an encoder: a column of UTF-8 texts, optionally with their pairs, or ids, or
// images, or pixels.
bool read(const std::vector<Input>& inputs, const admission::Judged& by, admission::Asked* asked);

// Reads a prompt with simple `sampling_parameters`, which say how many tokens are generated.
bool read_generation(const std::vector<Input>& inputs, admission::Asked* asked);

// Calls `row(index, bytes, size)` for each string until it returns false. Returns whether all
// strings were read.
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
