// Refuses requests for lack of time before they cost anything but being read by an endpoint.
//
// What an endpoint calls of tritonserver's C API (tritonserver.h) to make a request, in one thread:
// InferenceRequestNew, its setters, AddInput, AppendInputData, ServerInferAsync (stopping.cc). Only
// requests that are plain are judged, as all that is invalid is to be answered so: a column of
// texts in UTF-8, perhaps with its pairs, or ids, or images, or a prompt with simple
// `sampling_parameters`, and no parameters but those of admission.
#include "tritonserver/early_refusal.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

#include "tritonserver/admission_blocks.h"
#include "tritonserver/interpose.h"
#include "tritonserver/sampling_parameters.h"

struct TRITONBACKEND_Request;
struct TRITONSERVER_BufferAttributes;
struct TRITONSERVER_Server;
using Error = TRITONSERVER_Error;
using Request = TRITONSERVER_InferenceRequest;

enum DataType : int { BOOL = 1, INT64 = 9, FP32 = 11, BYTES = 13 };
enum MemoryType : int { CPU = 0, CPU_PINNED = 1 };
enum ParameterType : int { STRING = 0, INT = 1 };

extern "C" {
void TRITONSERVER_ErrorDelete(Error*);
Error* TRITONSERVER_InferenceRequestNew(Request**, TRITONSERVER_Server*, const char*, int64_t);
Error* TRITONSERVER_InferenceRequestAddInput(Request*, const char*, DataType, const int64_t*,
                                             uint64_t);
Error* TRITONSERVER_InferenceRequestAppendInputData(Request*, const char*, const void*, size_t,
                                                    MemoryType, int64_t);
Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    Request*, const char*, const void*, TRITONSERVER_BufferAttributes*);
Error* TRITONSERVER_BufferAttributesByteSize(TRITONSERVER_BufferAttributes*, size_t*);
Error* TRITONSERVER_BufferAttributesMemoryType(TRITONSERVER_BufferAttributes*, MemoryType*);
Error* TRITONSERVER_InferenceRequestTimeoutMicroseconds(Request*, uint64_t*);
// A request of the one API is one of the other.
Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request*, uint32_t*);
Error* TRITONBACKEND_RequestParameter(TRITONBACKEND_Request*, uint32_t, const char**,
                                      ParameterType*, const void**);
}

namespace {

// serving/instance/options.py
constexpr int64_t most_priority = 1000, most_timeout_us = int64_t{1} << 62;
constexpr int64_t most_tenant_characters = 128;

struct Input {
  std::string name;
  DataType type;
  std::vector<int64_t> shape;
  const unsigned char* base = nullptr;
  size_t bytes = 0;
  int parts = 0;
};

// The request that this thread makes.
struct Making {
  Request* request = nullptr;
  std::string model;
  int64_t version = -1;
  std::vector<Input> inputs;
};
thread_local Making making;
bool watching = false;

bool succeeded(Error* error) {
  if (error != nullptr) REAL(TRITONSERVER_ErrorDelete)(error);
  return error == nullptr;
}

// Of an input of the request that this thread makes.
void add_part(Request* request, const char* name, const void* base, size_t bytes,
              MemoryType memory) {
  if (making.request != request || request == nullptr) return;
  for (Input& input : making.inputs) {
    if (input.name != name) continue;
    input.base = static_cast<const unsigned char*>(base);
    input.bytes = bytes;
    input.parts += memory == CPU || memory == CPU_PINNED ? 1 : 2;
  }
}

// -1: it is not UTF-8.
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

bool read_parameters(Request* request, admission::Asked* asked) {
  const auto own = reinterpret_cast<TRITONBACKEND_Request*>(request);
  uint64_t timeout_us = 0;
  uint32_t count = 0;
  if (!succeeded(REAL(TRITONSERVER_InferenceRequestTimeoutMicroseconds)(request, &timeout_us)) ||
      !succeeded(REAL(TRITONBACKEND_RequestParameterCount)(own, &count))) {
    return false;
  }
  for (uint32_t index = 0; index < count; ++index) {
    const char* key = nullptr;
    ParameterType type = STRING;
    const void* value = nullptr;
    if (!succeeded(REAL(TRITONBACKEND_RequestParameter)(own, index, &key, &type, &value))) {
      return false;
    }
    if (type == INT && strcmp(key, "request_priority") == 0) {
      asked->priority = *static_cast<const int64_t*>(value);
      if (asked->priority < -most_priority || asked->priority > most_priority) return false;
    } else if (type == INT && strcmp(key, "timeout") == 0) {  // of `generate`
      const int64_t us = *static_cast<const int64_t*>(value);
      if (us < 0 || us > most_timeout_us) return false;
      if (us > 0) timeout_us = static_cast<uint64_t>(us);
    } else if (type == STRING && strcmp(key, "tenant") == 0) {
      asked->tenant = static_cast<const char*>(value);
      const auto text = reinterpret_cast<const unsigned char*>(asked->tenant.data());
      const int64_t found = characters(text, asked->tenant.size());
      if (found < 0 || found > most_tenant_characters) return false;
    } else {
      return false;
    }
  }
  asked->timeout_s = static_cast<double>(timeout_us) / 1e6;
  return true;
}

bool is_column(const Input& input, int64_t most_rows) {
  return input.type == BYTES && input.shape.size() == 2 && input.shape[0] >= 1 &&
         input.shape[0] <= most_rows && input.shape[1] == 1;
}

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

// Adds the bytes of each row's text.
bool read_texts(const Input& input, int64_t most_rows, admission::Asked* asked) {
  if (!is_column(input, most_rows)) return false;
  const size_t rows = static_cast<size_t>(input.shape[0]);
  asked->text_bytes.resize(rows);
  return each_string(input, rows, [&](size_t row, const unsigned char* text, uint32_t length) {
    asked->text_bytes[row] += length;
    if (length > asked->longest_text) asked->longest_text = length;
    return characters(text, length) >= 0;
  });
}

// A file whose kind the models read: that it is one is seen when it is decoded.
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

bool read_inputs(const std::vector<Input>& inputs, const admission::Judged& by,
                 admission::Asked* asked) {
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

bool is_one(const Input& input, DataType type) {
  return input.type == type && input.shape.size() == 1 && input.shape[0] == 1;
}

// The flags of an answer's outputs, tasks/contract.py.
bool is_returned(const std::string& name) {
  constexpr const char* outputs[] = {"finish_reason",    "cumulative_logprob", "sequences_scores",
                                     "num_input_tokens", "num_cached_tokens",  "num_output_tokens"};
  for (const char* output : outputs) {
    if (name.compare(0, 7, "return_") == 0 && name.compare(7, std::string::npos, output) == 0) {
      return true;
    }
  }
  return false;
}

bool read_prompt_ids(const Input& input, admission::Asked* asked) {
  if (input.type != INT64 || input.shape.size() != 1 || input.shape[0] < 1) return false;
  asked->prompt_tokens = static_cast<uint64_t>(input.shape[0]);
  if (input.bytes / 8 != asked->prompt_tokens || input.bytes % 8 != 0) return false;
  for (size_t at = 0; at < input.bytes; at += 8) {
    int64_t id;
    memcpy(&id, input.base + at, sizeof id);
    if (id < 0) return false;
    if (id > asked->largest_id) asked->largest_id = id;
  }
  return true;
}

// A prompt, and how much is generated after it.
bool read_generation(const std::vector<Input>& inputs, admission::Asked* asked) {
  bool has_prompt = false, has_parameters = false;
  for (const Input& input : inputs) {
    if (input.parts != 1) return false;
    if (input.name == "text_input") {
      if (has_prompt || !is_one(input, BYTES)) return false;
      has_prompt = each_string(input, 1, [&](size_t, const unsigned char* text, uint32_t length) {
        const int64_t found = characters(text, length);
        asked->prompt_characters = found > 0 ? static_cast<uint64_t>(found) : 0;
        return found > 0;
      });
      if (!has_prompt) return false;
    } else if (input.name == "input_ids") {
      if (has_prompt || !read_prompt_ids(input, asked)) return false;
      has_prompt = true;
    } else if (input.name == "sampling_parameters") {
      if (has_parameters || !is_one(input, BYTES)) return false;
      has_parameters =
          each_string(input, 1, [&](size_t, const unsigned char* text, uint32_t length) {
            sampling_parameters::Given given;
            const auto chars = reinterpret_cast<const char*>(text);
            if (!sampling_parameters::read(chars, length, &given)) return false;
            asked->new_tokens = given.new_tokens;
            if (given.has_priority) asked->priority = given.priority;
            const bool sooner = asked->timeout_s <= 0 || given.timeout_s < asked->timeout_s;
            if (given.timeout_s > 0 && sooner) asked->timeout_s = given.timeout_s;
            return true;
          });
      if (!has_parameters) return false;
    } else if (input.name == "exclude_input_in_output") {
      if (!is_one(input, BOOL) || input.bytes != 1 || *input.base == 0) return false;
    } else if (input.name != "stream" && !is_returned(input.name)) {
      return false;
    } else if (!is_one(input, BOOL) || input.bytes != 1) {
      return false;
    }
  }
  return has_prompt && has_parameters && asked->new_tokens > 0;
}

// Does what a request does not need to be answered: it passes where that fails, for lack of memory,
// say. No exception may reach tritonserver.
template <typename Act>
void attempt(Act act) noexcept {
  try {
    act();
  } catch (...) {
    making.request = nullptr;
  }
}

std::string refusal_of(Request* request) {
  const admission::Judged by = admission::judged_of(making.model, making.version);
  admission::Asked asked;
  if (by.most_rows < 1 || !read_parameters(request, &asked)) return {};
  const bool is_plain = by.generates ? read_generation(making.inputs, &asked)
                                     : read_inputs(making.inputs, by, &asked);
  if (!is_plain) return {};
  return admission::refused_by_all(making.model, making.version, asked);
}

}  // namespace

namespace early_refusal {

void watch(const char* prefix) {
  if (prefix == nullptr || *prefix == 0) return;
  admission::watch_blocks(prefix);
  watching = true;
}

Error* error(Request* request) {
  if (!watching || making.request != request) return nullptr;
  making.request = nullptr;
  std::string words;
  attempt([&] { words = refusal_of(request); });
  if (words.empty()) return nullptr;
  return REAL(TRITONSERVER_ErrorNew)(TRITONSERVER_ERROR_UNAVAILABLE, words.c_str());
}

}  // namespace early_refusal

EXPORTED Error* TRITONSERVER_InferenceRequestNew(Request** request, TRITONSERVER_Server* server,
                                                 const char* model, int64_t version) {
  Error* const failed = REAL(TRITONSERVER_InferenceRequestNew)(request, server, model, version);
  if (watching && failed == nullptr) {
    attempt([&] {
      making.request = *request;
      making.model = model;
      making.version = version;
      making.inputs.clear();
    });
  }
  return failed;
}

EXPORTED Error* TRITONSERVER_InferenceRequestAddInput(Request* request, const char* name,
                                                      DataType type, const int64_t* shape,
                                                      uint64_t dimensions) {
  if (making.request == request && request != nullptr) {
    attempt([&] { making.inputs.push_back({name, type, {shape, shape + dimensions}}); });
  }
  return REAL(TRITONSERVER_InferenceRequestAddInput)(request, name, type, shape, dimensions);
}

// The HTTP endpoint's.
EXPORTED Error* TRITONSERVER_InferenceRequestAppendInputData(Request* request, const char* name,
                                                             const void* base, size_t bytes,
                                                             MemoryType memory, int64_t id) {
  add_part(request, name, base, bytes, memory);
  return REAL(TRITONSERVER_InferenceRequestAppendInputData)(request, name, base, bytes, memory, id);
}

// The gRPC endpoint's.
EXPORTED Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    Request* request, const char* name, const void* base, TRITONSERVER_BufferAttributes* about) {
  size_t bytes = 0;
  MemoryType memory = CPU;
  if (succeeded(REAL(TRITONSERVER_BufferAttributesByteSize)(about, &bytes)) &&
      succeeded(REAL(TRITONSERVER_BufferAttributesMemoryType)(about, &memory))) {
    add_part(request, name, base, bytes, memory);
  }
  return REAL(TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes)(request, name, base,
                                                                                about);
}

// For tests, in any process: what `refusal` says of a block; returns the bytes of the words.
extern "C" __attribute__((visibility("default"))) size_t
fusewire_refusal(void* block, double now, double chance, const char* tenant, int64_t priority,
                 double timeout_s, const uint64_t* text_bytes, size_t texts, uint64_t id_rows,
                 uint64_t id_length, uint64_t images, char* words, size_t most) {
  admission::Asked asked;
  asked.tenant = tenant;
  asked.priority = priority;
  asked.timeout_s = timeout_s;
  asked.text_bytes.assign(text_bytes, text_bytes + texts);
  asked.id_rows = id_rows;
  asked.id_length = id_length;
  asked.images = images;
  const std::string found = admission::refusal(admission::Block(block), asked, now, chance);
  memcpy(words, found.data(), found.size() < most ? found.size() : most);
  return found.size();
}

// For tests, of a block of generation: as `fusewire_refusal`.
extern "C" __attribute__((visibility("default"))) size_t
fusewire_generation_refusal(void* block, double now, const char* tenant, int64_t priority,
                            double timeout_s, uint64_t characters, uint64_t tokens,
                            int64_t largest_id, uint64_t new_tokens, char* words, size_t most) {
  admission::Asked asked;
  asked.tenant = tenant;
  asked.priority = priority;
  asked.timeout_s = timeout_s;
  asked.prompt_characters = characters;
  asked.prompt_tokens = tokens;
  asked.largest_id = largest_id;
  asked.new_tokens = new_tokens;
  const std::string found = admission::refusal(admission::Block(block), asked, now, 0);
  memcpy(words, found.data(), found.size() < most ? found.size() : most);
  return found.size();
}

// For tests: `sampling_parameters::read`.
extern "C" __attribute__((visibility("default"))) bool fusewire_read_sampling_parameters(
    const char* text, size_t bytes, uint64_t* new_tokens, double* timeout_s, int64_t* priority) {
  sampling_parameters::Given given;
  const bool is_plain = sampling_parameters::read(text, bytes, &given);
  *new_tokens = given.new_tokens;
  *timeout_s = given.timeout_s;
  *priority = given.priority;
  return is_plain;
}

// For tests: whether a request of ids is refused by the blocks whose paths begin so.
extern "C" __attribute__((visibility("default"))) bool fusewire_refused_by_all(
    const char* prefix, const char* model, int64_t version, uint64_t id_rows, uint64_t id_length) {
  admission::watch_blocks(prefix);
  admission::Asked asked;
  asked.id_rows = id_rows;
  asked.id_length = id_length;
  return !admission::refused_by_all(model, version, asked).empty();
}
