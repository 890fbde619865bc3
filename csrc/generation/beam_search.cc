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
  running_.push_back({0, kPrompt, 0.0f, kPrompt, kPrompt});
}

int64_t BeamSearch::candidates() const {
  const auto ends = static_cast<int64_t>(settings_.eos_token_ids.size());
  return std::max<int64_t>(2, 1 + ends) * settings_.beams;
}

void BeamSearch::advance(const std::vector<BeamCandidate>& candidates) {
  if (done()) fail("BeamSearch: advance: got candidates for a search that is done, wanted none");
  const auto beams = static_cast<size_t>(settings_.beams);
  std::vector<RunningBeam> next;
  ++length_;
  const bool last = length_ == settings_.max_tokens;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const BeamCandidate& candidate = candidates[i];
    if (std::isnan(candidate.score)) {
      broken_ = true;
      next.clear();
      finished_.clear();
      break;
    }
    if (candidate.beam < 0) break;
    if (candidate.beam >= static_cast<int64_t>(running_.size())) {
      fail("BeamSearch: advance: got beam ", candidate.beam, " in candidate ", i, ", wanted 0 to ",
           running_.size() - 1, "; give the candidates of this request's running beams");
    }
    if (last || ends(candidate.token)) {
      // Those behind the first only stand by, in case that too few of them run on.
      if (i >= beams) continue;
      const int32_t node = add_node(candidate);
      finished_.push_back(
          {node, branch_of(candidate, node), candidate.score, penalized(candidate.score, length_)});
    } else if (next.size() < beams) {
      const int32_t node = add_node(candidate);
      next.push_back(
          {candidate.beam, candidate.token, candidate.score, node, branch_of(candidate, node)});
    }
  }
  running_ = std::move(next);
  keep_best_finished();
  if (!running_.empty() && !can_improve()) running_.clear();
}

int32_t BeamSearch::add_node(const BeamCandidate& candidate) {
  const int32_t parent = running_[static_cast<size_t>(candidate.beam)].node;
  trie_.push_back({candidate.token, parent, candidate.log_prob});
  return static_cast<int32_t>(trie_.size()) - 1;
}

int32_t BeamSearch::branch_of(const BeamCandidate& candidate, int32_t node) const {
  const RunningBeam& parent = running_[static_cast<size_t>(candidate.beam)];
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

// In fp32, as transformers divides.
float BeamSearch::penalized(float sum, int64_t length) const {
  const double divisor = std::pow(static_cast<double>(length), settings_.length_penalty);
  return sum / static_cast<float>(divisor);
}

void BeamSearch::keep_best_finished() {
  std::stable_sort(finished_.begin(), finished_.end(),
                   [](const Finished& a, const Finished& b) { return a.score > b.score; });
  const auto beams = static_cast<size_t>(settings_.beams);
  if (finished_.size() > beams) finished_.resize(beams);
}

bool BeamSearch::can_improve() const {
  if (finished_.size() < static_cast<size_t>(settings_.beams)) return true;
  if (settings_.early_stopping == EarlyStopping::kTrue) return false;
  const bool longest =
      settings_.early_stopping == EarlyStopping::kNever && settings_.length_penalty > 0.0;
  const float best = penalized(running_.front().score, longest ? settings_.max_tokens : length_);
  return best > finished_.back().score;
}

std::vector<int32_t> BeamSearch::path(int32_t node) const {
  std::vector<int32_t> nodes;
  for (; node != kPrompt; node = trie_[static_cast<size_t>(node)].parent) nodes.push_back(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

std::vector<int32_t> BeamSearch::history(int64_t beam) const {
  if (beam < 0 || beam >= static_cast<int64_t>(running_.size())) {
    fail("BeamSearch: history: got beam ", beam, ", wanted one of ", running_.size(), " running");
  }
  std::vector<int32_t> tokens = path(running_[static_cast<size_t>(beam)].node);
  for (int32_t& node : tokens) node = trie_[static_cast<size_t>(node)].token;
  return tokens;
}

Settled BeamSearch::settle() {
  if (done()) return {};
  const auto best = std::min(finished_.size(), static_cast<size_t>(settings_.n));
  const int32_t branch = running_.front().branch;
  for (const RunningBeam& beam : running_) {
    if (beam.branch != branch) return {};
  }
  for (size_t i = 0; i < best; ++i) {
    if (finished_[i].branch != branch) return {};
  }
  std::set<int32_t> ends;
  for (const RunningBeam& beam : running_) ends.insert(beam.node);
  for (size_t i = 0; i < best; ++i) ends.insert(finished_[i].node);
  // Equal tokens of one parent are one node, so common beginnings are common nodes; and parents
  // come before their children, so the last of several is no ancestor of the others.
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
  for (RunningBeam& beam : running_) beam.branch = branch_behind(common, beam.node);
  for (size_t i = 0; i < best; ++i) {
    finished_[i].branch = branch_behind(common, finished_[i].node);
  }
  return settled;
}

std::vector<Hypothesis> BeamSearch::hypotheses() const {
  std::vector<Hypothesis> all;
  for (const Finished& finished : finished_) {
    Hypothesis hypothesis{{}, {}, finished.sum, finished.score};
    for (int32_t node : path(finished.node)) {
      hypothesis.tokens.push_back(trie_[static_cast<size_t>(node)].token);
      hypothesis.log_probs.push_back(trie_[static_cast<size_t>(node)].log_prob);
    }
    all.push_back(std::move(hypothesis));
  }
  return all;
}

}  // namespace fusewire
