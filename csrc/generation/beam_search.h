// The bookkeeping of beam search for one request: which candidates continue, which are finished,
// and when no better hypothesis can follow. The semantics are those of transformers 5
// (GenerationMixin's beam search), with two exceptions: ties go to the earlier candidate, and slots
// that no live beam fills stay empty, where transformers fills them with copies at -1e9.
//
// Diverse beam search (Vijayakumar et al., 2018, algorithm 1) has several groups, which take each
// step one after the other, so that a group can avoid the tokens that earlier groups chose. The
// semantics are those of transformers 4.56 (BeamSearchScorer), which 5 no longer has, except that a
// group that is done chooses nothing, where it chose padding there.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace fusewire {

enum class EarlyStopping {
  kFalse,  // until the best running beam, at its current length, is no better than the worst
           // hypothesis
  kTrue,   // until there are `beams` finished hypotheses
  kNever,  // as kFalse, but at the length that it could still reach
};

struct BeamSettings {
  int64_t beams;       // 1 or more, over all groups
  int64_t max_tokens;  // tokens to generate, 1 or more, including the end-of-sequence token
  std::vector<int32_t> eos_token_ids;
  double length_penalty;  // a hypothesis of n tokens scores (sum of log_probs) / n^length_penalty
  EarlyStopping early_stopping;
  int64_t groups = 1;  // groups that search separately, each with beams / groups
  int64_t n = 1;       // number of hypotheses that are asked for, the best
  // A group's search waits for round(patience * beams / groups) finished hypotheses, at least 1,
  // and keeps as many (Kasai et al., 2022, "A Call for Clarity in Beam Search", section 3.1).
  double patience = 1.0;
  bool settles = true;  // whether settle() is used
};

// One candidate of a step (ops.def, beam_candidates); beam -1: unused.
struct BeamCandidate {
  float score, log_prob;
  int32_t beam, token;
};

struct RunningBeam {
  int32_t parent;  // index in its group, in the step before, of the beam that it continues
  int32_t token;
  float score;     // sum of log_probs
  int32_t node;    // index in the trie
  int32_t branch;  // first node of its path after the settled ones
};

// Tokens that all answers have in common, and their log-probabilities.
struct Settled {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
};

struct Hypothesis {
  std::vector<int32_t> tokens;  // including the end-of-sequence token
  std::vector<float> log_probs;
  float sum;
  double score;
};

class BeamSearch {
 public:
  explicit BeamSearch(BeamSettings settings);

  const BeamSettings& settings() const { return settings_; }
  // Returns the number of candidates that a group's step needs so that `beams` / `groups` of them
  // are not finished.
  int64_t candidates() const;

  // Takes the candidates of a group's running beams, best first. Before the first step one beam
  // runs in each group: the prompt, with score 0. A step is one call per group that is not done, in
  // ascending order.
  void advance(const std::vector<BeamCandidate>& candidates, int64_t group = 0);

  // Returns the beams of a group, best first, at most `beams` / `groups`; none once it is done.
  const std::vector<RunningBeam>& running(int64_t group = 0) const { return at(group).running; }
  // Returns the tokens that earlier groups have chosen in the step that this group takes next.
  std::vector<int32_t> chosen_before(int64_t group) const;
  int64_t length() const { return length_; }  // tokens generated
  bool done() const;
  // Returns whether a step's logits had NaN or +inf. The search is then done, without hypotheses.
  bool broken() const { return broken_; }

  // Returns the tokens that a running beam has generated. `beam` counts over all groups in turn.
  std::vector<int32_t> history(int64_t beam) const;
  // Returns what became certain since the last call, while the search is not done: the tokens with
  // which all running beams and the `n` best finished hypotheses begin. Each of the `n` best in the
  // end is one of these or continues one, so it begins with all settled tokens, whichever of them a
  // later step drops. While beams still differ in the first token that is not settled, a call costs
  // a comparison per beam. Returns nothing for several groups, whose answers differ by design, and
  // if `settles` is false.
  Settled settle();
  // Returns the finished hypotheses, best first: at most `most`, and at most the number that groups
  // wait for; fewer if tokens were forbidden or the vocabulary is small.
  std::vector<Hypothesis> hypotheses(int64_t most = std::numeric_limits<int64_t>::max()) const;

 private:
  // (token, parent) of every beam of every step: histories share their common prefixes.
  struct Node {
    int32_t token, parent;  // -1: the prompt
    float log_prob;
  };
  struct Finished {
    int32_t node, branch;  // as in RunningBeam; branch is valid only for the `n` best
    float sum;
    double score;
  };

  struct Group {
    std::vector<RunningBeam> running;
    std::vector<Finished> finished;  // best first
    std::vector<int32_t> chosen;     // tokens chosen in its last step
    int64_t length = 0;
  };

  const Group& at(int64_t group) const;
  int64_t beams_of_group() const { return settings_.beams / settings_.groups; }
  int64_t awaited() const;  // finished hypotheses that a group waits for
  int32_t add_node(const Group& group, const BeamCandidate& candidate);
  int32_t branch_of(const Group& group, const BeamCandidate& candidate, int32_t node) const;
  int32_t branch_behind(int32_t settled, int32_t node) const;
  bool ends(int32_t token) const;
  double penalized(float sum, int64_t length) const;
  void keep_best(std::vector<Finished>& finished, int64_t count) const;
  bool can_improve(const Group& group, float best) const;
  std::vector<int32_t> path(int32_t node) const;    // the node's path from the first node on
  std::vector<int32_t> tokens(int32_t node) const;  // the tokens of the path

  BeamSettings settings_;
  std::vector<Node> trie_;
  std::vector<Group> groups_;
  std::vector<RunningBeam> next_;  // scratch of advance()
  int64_t length_ = 0;
  int32_t settled_ = -1;  // the last node that all answers share; -1: none yet
  bool broken_ = false;
};

}  // namespace fusewire
