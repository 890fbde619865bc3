// Functions that tests call, in any process.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <string>

#include "tritonserver/admission_blocks.h"
#include "tritonserver/interpose.h"
#include "tritonserver/judgement.h"
#include "tritonserver/sampling_parameters.h"

namespace {

size_t write_refusal(void* block, const admission::Asked& asked, double now, double chance,
                     char* words, size_t most) {
  const std::string found =
      admission::judgement(admission::Block(block), asked, {}, now, chance).words;
  memcpy(words, found.data(), found.size() < most ? found.size() : most);
  return found.size();
}

}  // namespace

// Writes the message of `judgement` for a block; returns its size in bytes.
EXPORTED size_t fusewire_refusal(void* block, double now, double chance, const char* tenant,
                                 int64_t priority, double timeout_s, const uint64_t* text_bytes,
                                 size_t texts, uint64_t id_rows, uint64_t id_length,
                                 uint64_t images, char* words, size_t most) {
  admission::Asked asked;
  asked.tenant = tenant;
  asked.priority = priority;
  asked.timeout_s = timeout_s;
  asked.text_bytes.assign(text_bytes, text_bytes + texts);
  asked.id_rows = id_rows;
  asked.id_length = id_length;
  asked.images = images;
  return write_refusal(block, asked, now, chance, words, most);
}

// As `fusewire_refusal`, for a block of generation.
EXPORTED size_t fusewire_generation_refusal(void* block, double now, const char* tenant,
                                            int64_t priority, double timeout_s, uint64_t characters,
                                            uint64_t tokens, int64_t largest_id,
                                            uint64_t new_tokens, char* words, size_t most) {
  admission::Asked asked;
  asked.tenant = tenant;
  asked.priority = priority;
  asked.timeout_s = timeout_s;
  asked.prompt_characters = characters;
  asked.prompt_tokens = tokens;
  asked.largest_id = largest_id;
  asked.new_tokens = new_tokens;
  return write_refusal(block, asked, now, 0, words, most);
}

// Calls `sampling_parameters::read`.
EXPORTED bool fusewire_read_sampling_parameters(const char* text, size_t bytes,
                                                uint64_t* new_tokens, double* timeout_s,
                                                int64_t* priority) {
  sampling_parameters::Given given;
  const bool is_plain = sampling_parameters::read(text, bytes, &given);
  *new_tokens = given.new_tokens;
  *timeout_s = given.timeout_s;
  *priority = given.priority;
  return is_plain;
}

// Returns whether a request of ids is refused by the blocks whose paths begin with `prefix`.
EXPORTED bool fusewire_refused_by_all(const char* prefix, const char* model, int64_t version,
                                      uint64_t id_rows, uint64_t id_length, double timeout_s) {
  admission::watch_blocks(prefix);
  admission::Asked asked;
  asked.timeout_s = timeout_s;
  asked.id_rows = id_rows;
  asked.id_length = id_length;
  return !admission::refused_by_all(model, version, asked).empty();
}
