#include "generation/beam_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "core/error.h"

namespace fusewire {
namespace {

constexpr int32_t kPrompt = -1;

}  // namespace

BeamSearch::BeamSearch(BeamSettings settings) : settings_(std::move(settings)) {
  if (settings_.beams < 1) fail("BeamSearch: beams: got ", settings_.beams, ", wanted 1 or more");
  if (settings_.max_tokens < 1) {
    fail("BeamSearch: max_tokens: got ", settings_.max_tokens, ", wanted 1 or more");
  }
  if (!std::isfinite(settings_.length_penalty)) {
    fail("BeamSearch: length_penalty: got ", settings_.length_penalty, ", wanted a finite number");
  }
  if (settings_.n < 1 || settings_.n > settings_.beams) {
    fail("BeamSearch: n: got ", settings_.n, ", wanted 1 to ", settings_.beams, ", which is beams");
  }
  if (!std::isfinite(settings_.patience) || settings_.patience <= 0) {
    fail("BeamSearch: patience: got ", settings_.patience, ", wanted a finite number above 0");
  }
  const int64_t groups = settings_.groups;
  if (groups < 1 || settings_.beams % groups != 0) {
    fail("BeamSearch: groups: got ", groups, ", wanted 1 or more that divide ", settings_.beams,
         " beams");
  }
  if (settings_.n > groups * awaited()) {
    fail("BeamSearch: n: got ", settings_.n, ", wanted at most ", groups * awaited(),
         ", the hypotheses that are kept with patience ", settings_.patience);
  }
  groups_.resize(static_cast<size_t>(groups));
  for (Group& group : groups_) group.running.push_back({0, kPrompt, 0.0f, kPrompt, kPrompt});
}

const BeamSearch::Group& BeamSearch::at(int64_t group) const {
  if (group < 0 || group >= settings_.groups) {
    fail("BeamSearch: group: got ", group, ", wanted 0 to ", settings_.groups - 1);
  }
  return groups_[static_cast<size_t>(group)];
}

bool BeamSearch::done() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const Group& group) { return group.running.empty(); });
}

std::vector<int32_t> BeamSearch::chosen_before(int64_t group) const {
  std::vector<int32_t> tokens;
  for (int64_t before = 0; before < group; ++before) {
    if (at(before).length != at(group).length + 1) continue;  // that group was done
    tokens.insert(tokens.end(), at(before).chosen.begin(), at(before).chosen.end());
  }
  return tokens;
}

int64_t BeamSearch::candidates() const {
  const auto ends = static_cast<int64_t>(settings_.eos_token_ids.size());
  return std::max<int64_t>(2, 1 + ends) * beams_of_group();
}

void BeamSearch::advance(const std::vector<BeamCandidate>& candidates, int64_t index) {
  at(index);
  Group& group = groups_[static_cast<size_t>(index)];
  if (group.running.empty()) {
    fail("BeamSearch: advance: got candidates for a search that is done, wanted none");
  }
  const auto beams = static_cast<size_t>(beams_of_group());
  next_.clear();
  const size_t finished = group.finished.size();
  length_ = std::max(length_, ++group.length);
  const bool last = group.length == settings_.max_tokens;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const BeamCandidate& candidate = candidates[i];
    if (std::isnan(candidate.score)) {
      broken_ = true;
      for (Group& each : groups_) each = {};
      return;
    }
    if (candidate.beam < 0) break;
    if (candidate.beam >= static_cast<int64_t>(group.running.size())) {
      fail("BeamSearch: advance: got beam ", candidate.beam, " in candidate ", i, ", wanted 0 to ",
           group.running.size() - 1, "; give the candidates of this request's running beams");
    }
    if ((last && settings_.groups == 1) || ends(candidate.token)) {
      // Candidates beyond the first `beams` only serve to continue if too few of those do.
      if (i >= beams) continue;
      const int32_t node = add_node(group, candidate);
      group.finished.push_back({node, branch_of(group, candidate, node), candidate.score,
                                penalized(candidate.score, group.length)});
    } else if (next_.size() < beams) {
      const int32_t node = add_node(group, candidate);
      next_.push_back({candidate.beam, candidate.token, candidate.score, node,
                       branch_of(group, candidate, node)});
    }
  }
  group.running.swap(next_);
  if (group.finished.size() > finished) keep_best(group.finished, awaited());
  const bool grouped = settings_.groups > 1;
  if (grouped) {
    group.chosen.clear();
    for (const RunningBeam& beam : group.running) group.chosen.push_back(beam.token);
  }
  if (group.running.empty()) return;
  // For groups transformers compares the best candidate, finished or not, and finishes the running
  // beams at the last step only if that could improve the result.
  const bool improves =
      can_improve(group, grouped ? candidates.front().score : group.running.front().score);
  if (improves && last) {
    for (const RunningBeam& beam : group.running) {
      group.finished.push_back(
          {beam.node, beam.branch, beam.score, penalized(beam.score, group.length)});
    }
    keep_best(group.finished, awaited());
  }
  if (!improves || last) group.running.clear();
}

int32_t BeamSearch::add_node(const Group& group, const BeamCandidate& candidate) {
  const int32_t parent = group.running[static_cast<size_t>(candidate.beam)].node;
  trie_.push_back({candidate.token, parent, candidate.log_prob});
  return static_cast<int32_t>(trie_.size()) - 1;
}

int32_t BeamSearch::branch_of(const Group& group, const BeamCandidate& candidate,
                              int32_t node) const {
  const RunningBeam& parent = group.running[static_cast<size_t>(candidate.beam)];
  return parent.node == settled_ ? node : parent.branch;
}

int32_t BeamSearch::branch_behind(int32_t settled, int32_t node) const {
  if (node == settled) return node;
  while (trie_[static_cast<size_t>(node)].parent != settled) {
    node = trie_[static_cast<size_t>(node)].parent;
  }
  return node;
}

bool BeamSearch::ends(int32_t token) const {
  const auto& ids = settings_.eos_token_ids;
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

// Rounded as in CTranslate2.
int64_t BeamSearch::awaited() const {
  const auto beams = static_cast<double>(beams_of_group());
  return std::max<int64_t>(1, std::llround(beams * settings_.patience));
}

// Divides in fp32, as transformers does, unless the power of the length overflows fp32.
double BeamSearch::penalized(float sum, int64_t length) const {
  const double divisor = std::pow(static_cast<double>(length), settings_.length_penalty);
  const auto rounded = static_cast<float>(divisor);
  if (std::isinf(rounded)) return static_cast<double>(sum) / divisor;
  return static_cast<double>(sum / rounded);
}

void BeamSearch::keep_best(std::vector<Finished>& finished, int64_t count) const {
  std::stable_sort(finished.begin(), finished.end(),
                   [](const Finished& a, const Finished& b) { return a.score > b.score; });
  if (static_cast<int64_t>(finished.size()) > count) finished.resize(static_cast<size_t>(count));
}

// `best`: the highest sum of log_probs that could continue.
bool BeamSearch::can_improve(const Group& group, float best) const {
  if (static_cast<int64_t>(group.finished.size()) < awaited()) return true;
  if (settings_.early_stopping == EarlyStopping::kTrue) return false;
  const bool longest =
      settings_.early_stopping == EarlyStopping::kNever && settings_.length_penalty > 0.0;
  const int64_t length = longest ? settings_.max_tokens : group.length;
  return penalized(best, length) > group.finished.back().score;
}

std::vector<int32_t> BeamSearch::path(int32_t node) const {
  std::vector<int32_t> nodes;
  for (; node != kPrompt; node = trie_[static_cast<size_t>(node)].parent) nodes.push_back(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

std::vector<int32_t> BeamSearch::tokens(int32_t node) const {
  std::vector<int32_t> tokens = path(node);
  for (int32_t& each : tokens) each = trie_[static_cast<size_t>(each)].token;
  return tokens;
}

std::vector<int32_t> BeamSearch::history(int64_t beam) const {
  std::vector<int32_t> nodes;
  for (const Group& group : groups_) {
    for (const RunningBeam& each : group.running) nodes.push_back(each.node);
  }
  if (beam < 0 || beam >= static_cast<int64_t>(nodes.size())) {
    fail("BeamSearch: history: got beam ", beam, ", wanted one of ", nodes.size(), " running");
  }
  return tokens(nodes[static_cast<size_t>(beam)]);
}

Settled BeamSearch::settle() {
  if (!settings_.settles || done() || settings_.groups > 1) return {};
  std::vector<RunningBeam>& running = groups_.front().running;
  std::vector<Finished>& finished = groups_.front().finished;
  const auto best = std::min(finished.size(), static_cast<size_t>(settings_.n));
  const int32_t branch = running.front().branch;
  for (const RunningBeam& beam : running) {
    if (beam.branch != branch) return {};
  }
  for (size_t i = 0; i < best; ++i) {
    if (finished[i].branch != branch) return {};
  }
  std::set<int32_t> ends;
  for (const RunningBeam& beam : running) ends.insert(beam.node);
  for (size_t i = 0; i < best; ++i) ends.insert(finished[i].node);
  // Equal tokens of one parent are one node, so common prefixes are common nodes. Parents have
  // lower indices than their children, so the last of several nodes is no ancestor of the others.
  while (ends.size() > 1) {
    const auto last = std::prev(ends.end());
    ends.insert(trie_[static_cast<size_t>(*last)].parent);
    ends.erase(last);
  }
  Settled settled;
  const int32_t common = *ends.begin();
  for (int32_t at = common; at != settled_; at = trie_[static_cast<size_t>(at)].parent) {
    settled.tokens.push_back(trie_[static_cast<size_t>(at)].token);
    settled.log_probs.push_back(trie_[static_cast<size_t>(at)].log_prob);
  }
  std::reverse(settled.tokens.begin(), settled.tokens.end());
  std::reverse(settled.log_probs.begin(), settled.log_probs.end());
  settled_ = common;
  for (RunningBeam& beam : running) beam.branch = branch_behind(common, beam.node);
  for (size_t i = 0; i < best; ++i) {
    finished[i].branch = branch_behind(common, finished[i].node);
  }
  return settled;
}

std::vector<Hypothesis> BeamSearch::hypotheses(int64_t most) const {
  std::vector<Finished> together;
  for (const Group& group : groups_) {
    together.insert(together.end(), group.finished.begin(), group.finished.end());
  }
  keep_best(together, std::min(most, settings_.groups * awaited()));
  std::vector<Hypothesis> all;
  for (const Finished& finished : together) {
    Hypothesis hypothesis{{}, {}, finished.sum, finished.score};
    const std::vector<int32_t> nodes = path(finished.node);
    hypothesis.tokens.reserve(nodes.size());
    hypothesis.log_probs.reserve(nodes.size());
    for (const int32_t node : nodes) {
      hypothesis.tokens.push_back(trie_[static_cast<size_t>(node)].token);
      hypothesis.log_probs.push_back(trie_[static_cast<size_t>(node)].log_prob);
    }
    all.push_back(std::move(hypothesis));
  }
  return all;
}

}  // namespace fusewire
