// Reads the inputs of encoders (backend/fusewire/tasks/inputs.py).
#include "tritonserver/request_inputs.h"

#include "tritonserver/utf8.h"

namespace request_inputs {
namespace {

bool is_column(const Input& input, int64_t most_rows) {
  return input.type == BYTES && input.shape.size() == 2 && input.shape[0] >= 1 &&
         input.shape[0] <= most_rows && input.shape[1] == 1;
}

// Adds up the bytes of each row's text.
bool read_texts(const Input& input, int64_t most_rows, admission::Asked* asked) {
  if (!is_column(input, most_rows)) return false;
  const size_t rows = static_cast<size_t>(input.shape[0]);
  asked->text_bytes.resize(rows);
  return each_string(input, rows, [&](size_t row, const unsigned char* text, uint32_t length) {
    asked->text_bytes[row] += length;
    if (length > asked->longest_text) asked->longest_text = length;
    return utf8::characters(text, length) >= 0;
  });
}

// Returns whether a file begins like a kind that the models read; whether it is valid is seen when
// it is decoded.
bool is_image(const unsigned char* file, size_t bytes) {
  const auto begins = [&](size_t at, const char* with, size_t size) {
    return bytes >= at + size && memcmp(file + at, with, size) == 0;
  };
  return begins(0, "\xff\xd8\xff", 3) || begins(0, "\x89PNG\r\n\x1a\n", 8) ||
         (begins(0, "RIFF", 4) && begins(8, "WEBP", 4));
}

bool read_images(const Input& input, int64_t most_rows, admission::Asked* asked) {
  if (!is_column(input, most_rows)) return false;
  asked->images = static_cast<uint64_t>(input.shape[0]);
  return each_string(input, asked->images, [](size_t, const unsigned char* file, uint32_t length) {
    return is_image(file, length);
  });
}

bool is_finite(const unsigned char* numbers, size_t count) {
  constexpr uint32_t exponent = 0x7f800000;
  for (size_t index = 0; index < count; ++index) {
    uint32_t bits;
    memcpy(&bits, numbers + 4 * index, sizeof bits);
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

bool read_pixels(const Input& input, const admission::Judged& by, admission::Asked* asked) {
  const std::vector<int64_t>& shape = input.shape;
  if (input.type != FP32 || shape.size() != 4 || shape[0] < 1 || shape[0] > by.most_rows) {
    return false;
  }
  if (shape[1] != 3 || shape[2] != by.image_height || shape[3] != by.image_width) return false;
  const uint64_t numbers = static_cast<uint64_t>(shape[0] * 3 * shape[2] * shape[3]);
  asked->images = static_cast<uint64_t>(shape[0]);
  return input.bytes == 4 * numbers && is_finite(input.base, numbers);
}

bool read_ids(const Input& input, admission::Asked* asked) {
  if (input.type != INT64 || input.shape.size() != 2) return false;
  if (input.shape[0] < 1 || input.shape[1] < 1) return false;
  asked->id_rows = static_cast<uint64_t>(input.shape[0]);
  asked->id_length = static_cast<uint64_t>(input.shape[1]);
  return input.bytes / 8 / asked->id_rows == asked->id_length &&
         input.bytes == 8 * asked->id_rows * asked->id_length;
}

}  // namespace

bool read(const std::vector<Input>& inputs, const admission::Judged& by, admission::Asked* asked) {
  const Input *text = nullptr, *pair = nullptr, *ids = nullptr, *image = nullptr, *pixels = nullptr;
  for (const Input& input : inputs) {
    const Input** const place = input.name == "text_input"     ? &text
                                : input.name == "text_pair"    ? &pair
                                : input.name == "input_ids"    ? &ids
                                : input.name == "image"        ? &image
                                : input.name == "pixel_values" ? &pixels
                                                               : nullptr;
    if (place == nullptr || *place != nullptr || input.parts != 1) return false;
    *place = &input;
  }
  if (by.takes & admission::images) {
    if (inputs.size() != 1) return false;
    if (image != nullptr) return read_images(*image, by.most_rows, asked);
    return pixels != nullptr && read_pixels(*pixels, by, asked);
  }
  if (ids != nullptr) return inputs.size() == 1 && read_ids(*ids, asked);
  if (text == nullptr || !read_texts(*text, by.most_rows, asked)) return false;
  asked->has_pairs = pair != nullptr;
  if (pair == nullptr) return inputs.size() == 1;
  return inputs.size() == 2 && pair->shape == text->shape && read_texts(*pair, by.most_rows, asked);
}

}  // namespace request_inputs
