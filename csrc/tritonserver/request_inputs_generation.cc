// Reads the inputs of models that generate (backend/fusewire/serving/instance/generating.py).
#include "tritonserver/request_inputs.h"
#include "tritonserver/sampling_parameters.h"
#include "tritonserver/utf8.h"

namespace request_inputs {
namespace {

bool is_one(const Input& input, DataType type) {
  return input.type == type && input.shape.size() == 1 && input.shape[0] == 1;
}

// Returns whether the input is a flag that asks for an output (tasks/contract.py).
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

}  // namespace

bool read_generation(const std::vector<Input>& inputs, admission::Asked* asked) {
  bool has_prompt = false, has_parameters = false;
  for (const Input& input : inputs) {
    if (input.parts != 1) return false;
    if (input.name == "text_input") {
      if (has_prompt || !is_one(input, BYTES)) return false;
      has_prompt = each_string(input, 1, [&](size_t, const unsigned char* text, uint32_t length) {
        const int64_t found = utf8::characters(text, length);
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

}  // namespace request_inputs
