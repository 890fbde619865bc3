// Binds the bookkeeping of beam search. Each call serves many requests, with arrays in and out.
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "generation/beam_search.h"
#include "python/register.h"
#include "python/request_arrays.h"

namespace fusewire {
namespace {

namespace py = pybind11;
using namespace py::literals;

EarlyStopping early_stopping_of(const py::object& value) {
  if (py::isinstance<py::bool_>(value)) {
    return value.cast<bool>() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
  }
  if (py::isinstance<py::str>(value) && value.cast<std::string>() == "never") {
    return EarlyStopping::kNever;
  }
  fail("BeamSearch: early_stopping: got ", std::string(py::str(value)),
       ", wanted True, False or \"never\"");
}

// The running beams, which are the rows of the next step, and the tokens that are settled now.
struct Step {
  py::array_t<int32_t> offsets, parents;
  py::array_t<int64_t> tokens;
  py::array_t<float> scores;
  py::array_t<int32_t> settled_offsets, settled_tokens;
  py::array_t<float> settled_log_probs;
  py::array_t<int32_t> told;
  bool full;
};

// What the device and a step need of searches with one group each.
struct SearchRows {
  py::array_t<int32_t> offsets;
  py::array_t<float> scores;
  py::array_t<int32_t> candidates, ends;
};

SearchRows search_rows(const std::vector<BeamSearch*>& searches) {
  expect_all("search_rows", searches);
  std::vector<int32_t> offsets{0}, candidates;
  std::vector<float> scores;
  size_t most = 0;
  for (const BeamSearch* search : searches) {
    for (const RunningBeam& beam : search->running()) scores.push_back(beam.score);
    offsets.push_back(static_cast<int32_t>(scores.size()));
    candidates.push_back(static_cast<int32_t>(search->candidates()));
    most = std::max(most, search->settings().eos_token_ids.size());
  }
  py::array_t<int32_t> ends({searches.size(), most});
  int32_t* to = ends.mutable_data();
  for (const BeamSearch* search : searches) {
    const std::vector<int32_t>& own = search->settings().eos_token_ids;
    std::fill(std::copy(own.begin(), own.end(), to), to + most, -1);
    to += most;
  }
  return {array_of(offsets), array_of(scores), array_of(candidates), ends};
}

Step running_beams(const std::vector<BeamSearch*>& searches) {
  expect_all("running_beams", searches);
  std::vector<int32_t> offsets{0}, parents, settled_offsets{0}, settled_tokens;
  std::vector<int64_t> next;
  std::vector<float> next_scores, settled_log_probs;
  std::vector<int32_t> told;
  bool full = true;
  for (size_t i = 0; i < searches.size(); ++i) {
    BeamSearch* const search = searches[i];
    const size_t rows = parents.size(), certain = settled_tokens.size();
    for (int64_t group = 0; group < search->settings().groups; ++group) {
      for (const RunningBeam& beam : search->running(group)) {
        parents.push_back(beam.parent);
        next.push_back(beam.token);
        next_scores.push_back(beam.score);
      }
      offsets.push_back(static_cast<int32_t>(parents.size()));
    }
    const Settled settled = search->settle();
    settled_tokens.insert(settled_tokens.end(), settled.tokens.begin(), settled.tokens.end());
    settled_log_probs.insert(settled_log_probs.end(), settled.log_probs.begin(),
                             settled.log_probs.end());
    settled_offsets.push_back(static_cast<int32_t>(settled_tokens.size()));
    const bool done = parents.size() == rows;
    if (done || settled_tokens.size() > certain) told.push_back(static_cast<int32_t>(i));
    full = full && static_cast<int64_t>(parents.size() - rows) == search->settings().beams;
  }
  return {array_of(offsets),
          array_of(parents),
          array_of(next),
          array_of(next_scores),
          array_of(settled_offsets),
          array_of(settled_tokens),
          array_of(settled_log_probs),
          array_of(told),
          full};
}

void advance_beams(const std::vector<BeamSearch*>& searches, const Array<float>& scores,
                   const Array<float>& log_probs, const Array<int32_t>& beams,
                   const Array<int32_t>& tokens, int64_t group) {
  expect_all("advance_beams", searches);
  const auto groups = static_cast<py::ssize_t>(searches.size());
  const py::ssize_t most = scores.ndim() == 2 ? scores.shape(1) : 0;
  const auto expect = [&](const char* name, const py::array& array) {
    if (array.ndim() != 2 || array.shape(0) != groups || array.shape(1) != most) {
      fail("advance_beams: ", name, ": got ", std::string(py::str(array.attr("shape"))),
           ", wanted (", groups, ", ", most, "): a row for each search");
    }
  };
  expect("scores", scores);
  expect("log_probs", log_probs);
  expect("beams", beams);
  expect("tokens", tokens);
  std::vector<BeamCandidate> candidates;
  for (py::ssize_t g = 0; g < groups; ++g) {
    BeamSearch& search = *searches[static_cast<size_t>(g)];
    if (search.candidates() > most) {
      fail("advance_beams: got ", most, " candidates for search ", g, ", wanted ",
           search.candidates(), " or more");
    }
    candidates.clear();
    for (py::ssize_t i = g * most; i < g * most + search.candidates(); ++i) {
      candidates.push_back(
          {scores.data()[i], log_probs.data()[i], beams.data()[i], tokens.data()[i]});
    }
    search.advance(candidates, group);
  }
}

}  // namespace

void register_beams(py::module_& m) {
  py::class_<Hypothesis>(m, "Hypothesis", "A finished hypothesis of a beam search.")
      .def_property_readonly(
          "tokens", [](const Hypothesis& h) { return array_of(h.tokens); },
          "int32[n], including the end-of-sequence token, if there is one.")
      .def_property_readonly(
          "log_probs", [](const Hypothesis& h) { return array_of(h.log_probs); },
          "float32[n]: the log-probability of each token, after all processing of "
          "log-probabilities.")
      .def_property_readonly(
          "token_ids", [](const Hypothesis& h) { return h.tokens; }, "The tokens, as a list.")
      .def_property_readonly(
          "last_log_prob",
          [](const Hypothesis& h) { return h.log_probs.empty() ? 0.0f : h.log_probs.back(); })
      .def_property_readonly(
          "sum_before_last",
          [](const Hypothesis& h) {
            double sum = 0.0;
            for (size_t i = 0; i + 1 < h.log_probs.size(); ++i) sum += h.log_probs[i];
            return sum;
          },
          "The sum of all log_probs except the last, added in order in float64.")
      .def_readonly("sum", &Hypothesis::sum, "The sum of log_probs.")
      .def_readonly("score", &Hypothesis::score, "sum / n ** length_penalty");
  py::class_<BeamSearch>(
      m, "BeamSearch",
      "The bookkeeping of beam search for one request. The semantics are those of transformers 5, "
      "except that ties go to the lower beam and token, and that slots that no live beam fills "
      "stay empty.")
      .def(py::init([](int64_t beams, int64_t max_tokens, std::vector<int32_t> eos_token_ids,
                       double length_penalty, const py::object& early_stopping, int64_t groups,
                       int64_t n, double patience, bool settles) {
             return BeamSearch({beams, max_tokens, std::move(eos_token_ids), length_penalty,
                                early_stopping_of(early_stopping), groups, n, patience, settles});
           }),
           py::kw_only(), "beams"_a, "max_tokens"_a, "eos_token_ids"_a = std::vector<int32_t>{},
           "length_penalty"_a = 1.0, "early_stopping"_a = false, "groups"_a = 1, "n"_a = 1,
           "patience"_a = 1.0, "settles"_a = true,
           "max_tokens: tokens to generate, including the end-of-sequence token. early_stopping: "
           "when a search stops. True: at `beams` finished hypotheses; False: when the best "
           "running beam, at its current length, is no better than the worst of them; \"never\": "
           "when it would be no better at max_tokens either. groups: number of groups, each of "
           "which searches separately with `beams` / `groups` beams, as in transformers 4.56's "
           "group beam search. n: number of hypotheses that are asked for, the best. patience: a "
           "search waits for round(patience * beams / groups) finished hypotheses of each group "
           "instead of beams / groups, and keeps as many. settles: whether steps report which "
           "tokens are settled.")
      .def(
          "again",
          [](const BeamSearch& s, int64_t max_tokens, bool settles) {
            BeamSettings settings = s.settings();
            settings.max_tokens = max_tokens;
            settings.settles = settles;
            return BeamSearch(std::move(settings));
          },
          "max_tokens"_a, "settles"_a, "Returns a new search with the same settings except these.")
      .def_property_readonly("groups", [](const BeamSearch& s) { return s.settings().groups; })
      .def(
          "scores",
          [](const BeamSearch& s, int64_t group) {
            std::vector<float> scores;
            for (const RunningBeam& beam : s.running(group)) scores.push_back(beam.score);
            return array_of(scores);
          },
          "group"_a = 0,
          "float32[n]: the scores of a group's running beams; before the first step a single 0.")
      .def(
          "runs", [](const BeamSearch& s, int64_t group) { return !s.running(group).empty(); },
          "group"_a, "Returns whether the group has running beams.")
      .def(
          "chosen_before",
          [](const BeamSearch& s, int64_t group) { return array_of(s.chosen_before(group)); },
          "group"_a,
          "Returns int32[n]: the tokens that earlier groups have chosen in the step that this "
          "group takes next.")
      .def_property_readonly("candidates", &BeamSearch::candidates,
                             "The number of candidates that a group needs in a step: max(2, 1 + "
                             "number of end-of-sequence tokens) * beams / groups.")
      .def_property_readonly("length", &BeamSearch::length, "Tokens generated by each beam.")
      .def_property_readonly("done", &BeamSearch::done)
      .def_property_readonly("broken", &BeamSearch::broken,
                             "Whether it is done without a hypothesis because its logits had NaN "
                             "or +inf.")
      .def(
          "history", [](const BeamSearch& s, int64_t beam) { return array_of(s.history(beam)); },
          "beam"_a, "Returns int32[length]: the tokens that a running beam has generated.")
      .def(
          "hypotheses",
          [](const BeamSearch& s, std::optional<int64_t> most) {
            return most ? s.hypotheses(*most) : s.hypotheses();
          },
          "most"_a = py::none(),
          "Returns the finished hypotheses, best first: at most `most`, and at most the number "
          "that the search waits for; fewer if tokens were forbidden or the vocabulary is small.");
  py::class_<Step>(m, "BeamStep",
                   "The rows of the next step. Group i has rows offsets[i] to offsets[i + 1] "
                   "(int32[groups + 1]), none once it is done. The groups of all searches are in "
                   "order.")
      .def_readonly("offsets", &Step::offsets)
      .def_readonly("parents", &Step::parents,
                    "int32[rows]: the index in its group of the beam that each row continues.")
      .def_readonly("tokens", &Step::tokens, "int64[rows]")
      .def_readonly("scores", &Step::scores, "float32[rows]: sums of log-probabilities.")
      .def_readonly("settled_offsets", &Step::settled_offsets,
                    "int32[searches + 1]: the new settled tokens of search i are "
                    "settled_offsets[i] to settled_offsets[i + 1]. Its n best hypotheses will "
                    "begin with all its settled tokens. None once it is done.")
      .def_readonly("settled_tokens", &Step::settled_tokens, "int32[settled]")
      .def_readonly("settled_log_probs", &Step::settled_log_probs, "float32[settled]")
      .def_readonly("told", &Step::told,
                    "int32[n]: the searches that are done or have new settled tokens, ascending.")
      .def_readonly("full", &Step::full,
                    "Whether each search has as many running beams as it may have.");
  py::class_<SearchRows>(m, "SearchRows", "What a step needs of searches with one group each.")
      .def_readonly("offsets", &SearchRows::offsets,
                    "int32[searches + 1]: the running beams of search i are rows offsets[i] to "
                    "offsets[i + 1].")
      .def_readonly("scores", &SearchRows::scores, "float32[rows]")
      .def_readonly("candidates", &SearchRows::candidates,
                    "int32[searches]: the number of candidates that each search needs.")
      .def_readonly("ends", &SearchRows::ends,
                    "int32[searches, most]: the end-of-sequence tokens of each search, padded with "
                    "-1.");
  m.def("search_rows", &search_rows, "searches"_a,
        "Returns what a step needs of searches with one group each.");
  m.def("advance_beams", &advance_beams, "searches"_a, "scores"_a, "log_probs"_a, "beams"_a,
        "tokens"_a, "group"_a = 0,
        "Advances each search by its row of [searches, most], the results of `beam_candidates` for "
        "the group.");
  m.def("running_beams", &running_beams, "searches"_a,
        "Returns the running beams after a step of all groups, and the tokens that it settled. "
        "Call it once per step.");
}

}  // namespace fusewire
