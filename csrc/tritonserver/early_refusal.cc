// Refuses requests for lack of time before they cost anything but being read by an endpoint.
//
// What an endpoint calls of tritonserver's C API (tritonserver.h) to make a request, in one thread:
// InferenceRequestNew, its setters, AddInput, AppendInputData, ServerInferAsync (stopping.cc). Only
// requests that are plain are judged, as all that is invalid is to be answered so: a column of
// texts in UTF-8, perhaps with its pairs, or ids, and no parameters but those of admission.
#include "tritonserver/early_refusal.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

#include "tritonserver/admission_blocks.h"
#include "tritonserver/interpose.h"

struct TRITONBACKEND_Request;
struct TRITONSERVER_BufferAttributes;
struct TRITONSERVER_Server;
using Error = TRITONSERVER_Error;
using Request = TRITONSERVER_InferenceRequest;

enum DataType : int { INT64 = 9, BYTES = 13 };
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

// Adds the bytes of each row's text.
bool read_texts(const Input& input, int64_t most_rows, admission::Asked* asked) {
  if (input.type != BYTES || input.shape.size() != 2 || input.shape[1] != 1) return false;
  const int64_t rows = input.shape[0];
  if (rows < 1 || rows > most_rows) return false;
  asked->text_bytes.resize(static_cast<size_t>(rows));
  size_t at = 0;
  for (uint64_t& whole : asked->text_bytes) {
    uint32_t length;
    if (input.bytes - at < sizeof length) return false;
    memcpy(&length, input.base + at, sizeof length);
    at += sizeof length;
    if (input.bytes - at < length || characters(input.base + at, length) < 0) return false;
    at += length;
    whole += length;
    if (length > asked->longest_text) asked->longest_text = length;
  }
  return at == input.bytes;
}

bool read_ids(const Input& input, admission::Asked* asked) {
  if (input.type != INT64 || input.shape.size() != 2) return false;
  if (input.shape[0] < 1 || input.shape[1] < 1) return false;
  asked->id_rows = static_cast<uint64_t>(input.shape[0]);
  asked->id_length = static_cast<uint64_t>(input.shape[1]);
  return input.bytes / 8 / asked->id_rows == asked->id_length &&
         input.bytes == 8 * asked->id_rows * asked->id_length;
}

bool read_inputs(const std::vector<Input>& inputs, int64_t most_rows, admission::Asked* asked) {
  const Input *text = nullptr, *pair = nullptr, *ids = nullptr;
  for (const Input& input : inputs) {
    const Input** const place = input.name == "text_input"  ? &text
                                : input.name == "text_pair" ? &pair
                                : input.name == "input_ids" ? &ids
                                                            : nullptr;
    if (place == nullptr || *place != nullptr || input.parts != 1) return false;
    *place = &input;
  }
  if (ids != nullptr) return inputs.size() == 1 && read_ids(*ids, asked);
  if (text == nullptr || !read_texts(*text, most_rows, asked)) return false;
  asked->has_pairs = pair != nullptr;
  return pair == nullptr || (pair->shape == text->shape && read_texts(*pair, most_rows, asked));
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
  const int64_t most_rows = admission::most_rows_of(making.model, making.version);
  admission::Asked asked;
  if (most_rows < 1 || !read_parameters(request, &asked) ||
      !read_inputs(making.inputs, most_rows, &asked)) {
    return {};
  }
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
                 uint64_t id_length, char* words, size_t most) {
  admission::Asked asked;
  asked.tenant = tenant;
  asked.priority = priority;
  asked.timeout_s = timeout_s;
  asked.text_bytes.assign(text_bytes, text_bytes + texts);
  asked.id_rows = id_rows;
  asked.id_length = id_length;
  const std::string found = admission::refusal(admission::Block(block), asked, now, chance);
  memcpy(words, found.data(), found.size() < most ? found.size() : most);
  return found.size();
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
