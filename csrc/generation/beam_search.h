// The bookkeeping of beam search for one request: which candidates run on, which are finished, and
// when nothing better can come. Semantics are those of transformers 5 (GenerationMixin's beam
// search), but for ties, which go to what stands first, and for places that no live beam fills,
// which transformers fills with copies at -1e9 and which stay empty here.
#pragma once

#include <cstdint>
#include <vector>

namespace fusewire {

enum class EarlyStopping {
  kFalse,  // until the best running beam, at the length it has now, is no better than the worst
           // result
  kTrue,   // until there are `beams` finished hypotheses
  kNever,  // as kFalse, but at the length it could still reach
};

struct BeamSettings {
  int64_t beams;       // 1 or more
  int64_t max_tokens;  // 1 or more to generate, the end-of-sequence token included
  std::vector<int32_t> eos_token_ids;
  double length_penalty;  // a hypothesis of n tokens scores (sum of log_probs) / n^length_penalty
  EarlyStopping early_stopping;
  int64_t n = 1;  // hypotheses that are asked for, the best
};

// One place of a step's candidates (ops.def, beam_candidates); beam -1: unused.
struct BeamCandidate {
  float score, log_prob;
  int32_t beam, token;
};

struct RunningBeam {
  int32_t parent;  // the beam of the step before that it goes on
  int32_t token;
  float score;     // sum of log_probs
  int32_t node;    // of the trie
  int32_t branch;  // the node on its path that follows what is settled
};

// Tokens of which all answers agree, and their log-probabilities.
struct Settled {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
};

struct Hypothesis {
  std::vector<int32_t> tokens;  // with the end-of-sequence token
  std::vector<float> log_probs;
  float sum, score;
};

class BeamSearch {
 public:
  explicit BeamSearch(BeamSettings settings);

  const BeamSettings& settings() const { return settings_; }
  // Candidates that a step needs so that `beams` of them are not finished.
  int64_t candidates() const;

  // Takes the candidates of the running beams, best first. Before the first step one beam runs, the
  // prompt, at score 0.
  void advance(const std::vector<BeamCandidate>& candidates);

  // Best first, at most `beams`; none once it is done.
  const std::vector<RunningBeam>& running() const { return running_; }
  int64_t length() const { return length_; }  // tokens generated
  bool done() const { return running_.empty(); }
  // A step's logits had NaN or +inf: it is done, and without hypotheses.
  bool broken() const { return broken_; }

  // The tokens that a running beam has generated, for whatever looks at histories.
  std::vector<int32_t> history(int64_t beam) const;
  // What came to be certain since the last call, of a search that is not done: the tokens that all
  // running beams and the `n` best finished hypotheses begin with. Each of the `n` best in the end
  // is one of these or goes on from one, so it begins with all that was ever settled; which of them
  // a later step drops does not matter. Where beams still differ
  // behind what was settled before, that takes a glance at each of them.
  Settled settle();
  // The finished ones, best first, at most `beams`; fewer where tokens were forbidden or the
  // vocabulary is small.
  std::vector<Hypothesis> hypotheses() const;

 private:
  // (token, parent) of every beam of every step: histories share what they have in common.
  struct Node {
    int32_t token, parent;  // -1: the prompt
    float log_prob;
  };
  struct Finished {
    int32_t node, branch;  // as RunningBeam's; the branch only of the `n` best
    float sum, score;
  };

  int32_t add_node(const BeamCandidate& candidate);
  int32_t branch_of(const BeamCandidate& candidate, int32_t node) const;
  int32_t branch_behind(int32_t settled, int32_t node) const;
  bool ends(int32_t token) const;
  float penalized(float sum, int64_t length) const;
  void keep_best_finished();
  bool can_improve() const;
  std::vector<int32_t> path(int32_t node) const;  // nodes, first one first

  BeamSettings settings_;
  std::vector<Node> trie_;
  std::vector<RunningBeam> running_;
  std::vector<Finished> finished_;  // best first
  int64_t length_ = 0;
  int32_t settled_ = -1;  // the last node that all answers have; -1: none yet
  bool broken_ = false;
};

}  // namespace fusewire
