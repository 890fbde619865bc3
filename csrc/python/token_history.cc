// Binds token histories. Each call serves many requests.
#include "generation/token_history.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"
#include "python/register.h"
#include "python/request_arrays.h"

namespace fusewire {
namespace {

namespace py = pybind11;
using namespace py::literals;
template <class T>
using ConvertedArray = py::array_t<T, py::array::c_style | py::array::forcecast>;
using Tokens = std::vector<int32_t>;

TokenHistories begin(const Tokens& prompt_ids, const Tokens& source_ids,
                     const std::map<int32_t, float>& biases, Tokens stop_token_ids,
                     int64_t min_new_tokens, Tokens begin_suppress_tokens, int64_t begin,
                     std::vector<Tokens> bad_words, int64_t no_repeat_ngram_size,
                     int64_t encoder_no_repeat_ngram_size, bool counts_prompt, bool counts_tokens) {
  for (const Tokens& word : bad_words) {
    if (word.size() < 2) {
      fail("TokenHistories: bad_words: got one of ", word.size(),
           " tokens, wanted 2 or more; give single tokens a bias of -inf");
    }
  }
  const auto rules = std::make_shared<TokenRules>();
  rules->biases.assign(biases.begin(), biases.end());
  rules->stop_token_ids = std::move(stop_token_ids);
  rules->min_new_tokens = min_new_tokens;
  rules->begin_suppress_tokens = std::move(begin_suppress_tokens);
  rules->begin = begin;
  rules->bad_words = std::move(bad_words);
  if (no_repeat_ngram_size) rules->ngrams.emplace(prompt_ids, no_repeat_ngram_size);
  if (encoder_no_repeat_ngram_size) {
    rules->source_ngrams.emplace(source_ids, encoder_no_repeat_ngram_size);
  }
  rules->counts_tokens = counts_tokens || counts_prompt;
  if (counts_prompt) {
    Tokens& counted = rules->counted_prompt;
    counted = prompt_ids;
    std::sort(counted.begin(), counted.end());
    counted.erase(std::unique(counted.begin(), counted.end()), counted.end());
  }
  const auto size = static_cast<int64_t>(prompt_ids.size());
  rules->prompt_end.assign(prompt_ids.end() - std::min(size, rules->reach()), prompt_ids.end());
  return TokenHistories(rules);
}

void advance(TokenHistories& histories, const ConvertedArray<int32_t>& parents,
             const ConvertedArray<int64_t>& tokens) {
  if (parents.ndim() != 1 || tokens.ndim() != 1 || parents.size() != tokens.size()) {
    fail("TokenHistories: advance: got ", parents.size(), " parents and ", tokens.size(),
         " tokens, wanted a vector of each, as long as the other");
  }
  histories.advance(parents.data(), tokens.data(), tokens.size());
}

void append_tokens(const std::vector<TokenHistories*>& all, const std::vector<int64_t>& tokens) {
  if (all.size() != tokens.size()) {
    fail("append_tokens: got ", tokens.size(), " tokens for ", all.size(),
         " histories, wanted one for each");
  }
  const int32_t parent = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (tokens[i] >= 0) all[i]->advance(&parent, &tokens[i], 1);
  }
}

py::tuple token_biases(const std::vector<const TokenHistories*>& all) {
  TokenBiases biases;
  int64_t row = 0;
  for (const TokenHistories* each : all) {
    each->biases(static_cast<int32_t>(row), biases);
    row += each->rows();
  }
  return py::make_tuple(array_of(biases.rows), array_of(biases.tokens), array_of(biases.values));
}

py::tuple seen_tokens(const std::vector<const TokenHistories*>& all) {
  SeenTokens seen;
  for (const TokenHistories* each : all) each->seen(seen);
  return py::make_tuple(array_of(seen.offsets), array_of(seen.tokens), array_of(seen.counts));
}

}  // namespace

void register_token_history(py::module_& m) {
  py::class_<TokenHistories>(
      m, "TokenHistories",
      "The texts of one request that are generated together, one per row, and what their previous "
      "tokens imply for the next ones, as transformers' logits processors do.")
      .def(py::init(&begin), py::kw_only(), "prompt_ids"_a = Tokens{}, "source_ids"_a = Tokens{},
           "biases"_a = std::map<int32_t, float>{}, "stop_token_ids"_a = Tokens{},
           "min_new_tokens"_a = 0, "begin_suppress_tokens"_a = Tokens{}, "begin"_a = 0,
           "bad_words"_a = std::vector<Tokens>{}, "no_repeat_ngram_size"_a = 0,
           "encoder_no_repeat_ngram_size"_a = 0, "counts_prompt"_a = false,
           "counts_tokens"_a = false,
           "Begins with one text after prompt_ids. biases: added in every step. stop_token_ids: "
           "forbidden before min_new_tokens. begin_suppress_tokens: forbidden after exactly "
           "`begin` new tokens. bad_words: of 2 tokens or more. source_ids: the encoder's input, "
           "no n-gram of which, of encoder_no_repeat_ngram_size tokens, is generated. "
           "counts_tokens: seen_tokens has the generated tokens; counts_prompt: also those of the "
           "prompt.")
      .def_property_readonly("rows", &TokenHistories::rows)
      .def(
          "fork", [](const TokenHistories& h) { return h; }, "Returns an independent copy.")
      .def(
          "append",
          [](TokenHistories& h, int64_t token) {
            const int32_t parent = 0;
            h.advance(&parent, &token, 1);
          },
          "token"_a, "Appends a token to the single row.")
      .def("advance", &advance, "parents"_a, "tokens"_a,
           "Makes row i row parents[i] (int32) followed by tokens[i] (int64).")
      .def("penalize_once", &TokenHistories::penalize_once, "tokens"_a, "penalty"_a,
           "Subtracts the penalty in the next step for each of the tokens, as often as it occurs.");
  m.def("append_tokens", &append_tokens, "histories"_a, "tokens"_a,
        "Appends each token to the single row of its history; -1: appends nothing.");
  m.def("token_biases", &token_biases, "histories"_a,
        "Returns (rows int32, tokens int32, values float32): what is added to the logits of the "
        "next tokens, each token of a row once, -inf if it is forbidden. The rows of all histories "
        "are numbered in turn.");
  m.def("seen_tokens", &seen_tokens, "histories"_a,
        "Returns (offsets int32[rows + 1], tokens int32, counts int32): the distinct tokens that "
        "penalties concern, of row i from offsets[i] on, and how often each was generated.");
}

}  // namespace fusewire
