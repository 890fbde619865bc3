// The bookkeeping of beam search for one request: which candidates run on, which are finished, and
// when nothing better can come. Semantics are those of transformers 5 (GenerationMixin's beam
// search), but for ties, which go to what stands first, and for places that no live beam fills,
// which transformers fills with copies at -1e9 and which stay empty here.
//
// Diverse beam search (Vijayakumar et al., 2018, algorithm 1) has several groups, which take their
// steps one after the other, so that a group can avoid what those before it chose. Semantics are
// those of transformers 4.56 (BeamSearchScorer), which 5 no longer has; but a group that is done
// chooses nothing, where it chose padding there.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace fusewire {

enum class EarlyStopping {
  kFalse,  // until the best running beam, at the length it has now, is no better than the worst
           // result
  kTrue,   // until there are `beams` finished hypotheses
  kNever,  // as kFalse, but at the length it could still reach
};

struct BeamSettings {
  int64_t beams;       // 1 or more, of all groups
  int64_t max_tokens;  // 1 or more to generate, the end-of-sequence token included
  std::vector<int32_t> eos_token_ids;
  double length_penalty;  // a hypothesis of n tokens scores (sum of log_probs) / n^length_penalty
  EarlyStopping early_stopping;
  int64_t groups = 1;  // that search by themselves, each with beams / groups
  int64_t n = 1;       // hypotheses that are asked for, the best
  // A group's search waits for round(patience * beams / groups) finished hypotheses, at least 1,
  // and keeps as many (Kasai et al., 2022, "A Call for Clarity in Beam Search", section 3.1).
  double patience = 1.0;
  bool settles = true;  // whether anybody asks what `settle` says
};

// One place of a step's candidates (ops.def, beam_candidates); beam -1: unused.
struct BeamCandidate {
  float score, log_prob;
  int32_t beam, token;
};

struct RunningBeam {
  int32_t parent;  // the beam of its group in the step before that it goes on
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
  float sum;
  double score;
};

class BeamSearch {
 public:
  explicit BeamSearch(BeamSettings settings);

  const BeamSettings& settings() const { return settings_; }
  // Candidates that a group's step needs so that `beams` / `groups` of them are not finished.
  int64_t candidates() const;

  // Takes the candidates of a group's running beams, best first. Before the first step one beam
  // runs in each group, the prompt, at score 0. A step is one of each group that is not done, in
  // ascending order.
  void advance(const std::vector<BeamCandidate>& candidates, int64_t group = 0);

  // The beams of a group, best first, at most `beams` / `groups`; none once it is done.
  const std::vector<RunningBeam>& running(int64_t group = 0) const { return at(group).running; }
  // The tokens that groups before this one have taken in the step that it has yet to take.
  std::vector<int32_t> chosen_before(int64_t group) const;
  int64_t length() const { return length_; }  // tokens generated
  bool done() const;
  // A step's logits had NaN or +inf: it is done, and without hypotheses.
  bool broken() const { return broken_; }

  // The tokens that a running beam has generated; beams of all groups, one after the other.
  std::vector<int32_t> history(int64_t beam) const;
  // What came to be certain since the last call, of a search that is not done: the tokens that all
  // running beams and the `n` best finished hypotheses begin with. Each of the `n` best in the end
  // is one of these or goes on from one, so it begins with all that was ever settled; which of them
  // a later step drops does not matter. Where beams still differ behind what was settled before,
  // that takes a glance at each of them. Nothing of several groups, which are there to differ, nor
  // where nobody asks.
  Settled settle();
  // The finished ones, best first, at most those that groups wait for; fewer where tokens were
  // forbidden or the vocabulary is small. `most`: of these.
  std::vector<Hypothesis> hypotheses(int64_t most = std::numeric_limits<int64_t>::max()) const;

 private:
  // (token, parent) of every beam of every step: histories share what they have in common.
  struct Node {
    int32_t token, parent;  // -1: the prompt
    float log_prob;
  };
  struct Finished {
    int32_t node, branch;  // as RunningBeam's; the branch only of the `n` best
    float sum;
    double score;
  };

  struct Group {
    std::vector<RunningBeam> running;
    std::vector<Finished> finished;  // best first
    std::vector<int32_t> chosen;     // of the last step that it took
    int64_t length = 0;
  };

  const Group& at(int64_t group) const;
  int64_t beams_of_group() const { return settings_.beams / settings_.groups; }
  int64_t awaited() const;  // finished hypotheses of a group
  int32_t add_node(const Group& group, const BeamCandidate& candidate);
  int32_t branch_of(const Group& group, const BeamCandidate& candidate, int32_t node) const;
  int32_t branch_behind(int32_t settled, int32_t node) const;
  bool ends(int32_t token) const;
  double penalized(float sum, int64_t length) const;
  void keep_best(std::vector<Finished>& finished, int64_t count) const;
  bool can_improve(const Group& group, float best) const;
  std::vector<int32_t> path(int32_t node) const;    // nodes, first one first
  std::vector<int32_t> tokens(int32_t node) const;  // of these

  BeamSettings settings_;
  std::vector<Node> trie_;
  std::vector<Group> groups_;
  std::vector<RunningBeam> next_;  // of a step that is being taken
  int64_t length_ = 0;
  int32_t settled_ = -1;  // the last node that all answers have; -1: none yet
  bool broken_ = false;
};

}  // namespace fusewire
