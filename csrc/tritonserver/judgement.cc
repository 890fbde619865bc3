// Judges requests as engine/encoder_admission.py and engine/backlog.py do, from what their block
// says.
//
// A request that is refused here would be refused there at this moment, or once the requests on the
// way have been judged. A request is therefore accepted if the block is being written, is old, or
// leaves open what asking would change: slots that are about to begin anew, a tenant that is about
// to be forgotten. Values that must be computed are rounded in favour of the request.
#include "tritonserver/judgement.h"

#include <math.h>
#include <stdio.h>

#include <algorithm>

namespace admission {
namespace {

// More than rounding errors.
constexpr double rounding_s = 1e-6;
constexpr double none = INFINITY;

struct Cost {
  double tokens = 0, squares = 0;
};

// As in engine/expectation.py.
Cost expected(const Block& block, const Asked& asked) {
  if (asked.id_rows) {
    const double tokens = static_cast<double>(asked.id_rows * asked.id_length);
    return {tokens, tokens * static_cast<double>(asked.id_length)};
  }
  if (asked.images) {
    const double each = block.real(tokens_of_image);
    return {static_cast<double>(asked.images) * each,
            static_cast<double>(asked.images) * each * each};
  }
  const double rate = block.real(tokens_of_byte);
  const double most = static_cast<double>(block.whole(max_length));
  const bool cut = !(block.whole(takes) & windows);
  Cost cost;
  for (const uint64_t bytes_of_row : asked.text_bytes) {
    double tokens = static_cast<double>(bytes_of_row) * rate;
    if (cut) tokens = std::min(tokens, most);
    cost.tokens += tokens;
    cost.squares += tokens * std::min(tokens, most);
  }
  return cost;
}

// The slots of a priority and all higher ones.
class Slots {
 public:
  Slots(const Block& block, size_t region)
      : block_(block), work_(work + region * region_words), latest_(work_ + 2 * slots) {}

  double total() const { return block_.real(work_ + 1); }

  // Computes `before`, the work that is due in the same slot as `due` or before it, and `latest`,
  // the latest time at which all later work may begin and still be in time.
  void around(double due, double* before, double* latest) const {
    size_t node = slot(due) + slots;
    double earlier = 0, between = block_.real(work_ + node), behind = none;
    const double own = between;
    for (; node > 1; node >>= 1) {
      if (node & 1) {
        earlier += block_.real(work_ + node - 1);
      } else {
        behind = std::min(behind, block_.real(latest_ + node + 1) - between);
        between += block_.real(work_ + node + 1);
      }
    }
    *before = earlier + own;
    *latest = behind - earlier;
  }

 private:
  size_t slot(double due) const {
    const double widths = (due - block_.real(begin)) / block_.real(width_s);
    if (!(widths > 0)) return 0;
    if (widths < near_slots) return static_cast<size_t>(widths);
    double ratio = widths / near_slots;
    size_t octaves = 0;
    for (; ratio >= 2 && octaves < near_slots / octave; ratio /= 2) ++octaves;
    if (octaves == near_slots / octave) return slots - 1;
    return near_slots + octaves * octave + static_cast<size_t>((ratio - 1) * octave);
  }

  const Block& block_;
  const size_t work_, latest_;
};

// Finds the level of the priority, or the next higher one. Returns false if there is none.
bool find_level(const Block& block, int64_t priority, size_t* region, int64_t* of) {
  bool found = false;
  const int64_t count = std::min<int64_t>(block.whole(levels), most_levels);
  for (int64_t place = 0; place < count && block.whole(priorities + place) <= priority; ++place) {
    *of = block.whole(priorities + place);
    *region = std::min<uint64_t>(block.whole(regions + place), most_regions - 1);
    found = true;
  }
  return found;
}

// Returns the work of a tenant at this priority and higher ones.
double own_seconds(const Block& block, const std::string& tenant, int64_t priority) {
  for (size_t place = 0; place < most_tenants; ++place) {
    const size_t first = tenants + place * tenant_words;
    if (block.whole(first) != static_cast<int64_t>(tenant.size() + 1)) continue;
    if (memcmp(block.text(first + 1), tenant.data(), tenant.size()) != 0) continue;
    const size_t pairs_at = first + 1 + text_words;
    double seconds = 0;
    const int64_t count = std::min<int64_t>(block.whole(pairs_at), most_priorities);
    for (int64_t pair = 0; pair < count; ++pair) {
      const size_t at = pairs_at + 1 + 2 * pair;
      if (block.whole(at) <= priority) seconds += block.real(at + 1);
    }
    return seconds;
  }
  return 0;
}

// Returns whether the request is valid, as far as is known before a request is judged.
bool is_plain(const Block& block, const Asked& asked) {
  const int64_t allowed = block.whole(takes), most = block.whole(most_rows);
  const size_t rows = asked.id_rows  ? asked.id_rows
                      : asked.images ? asked.images
                                     : asked.text_bytes.size();
  if (rows == 0 || most < 0 || rows > static_cast<uint64_t>(most)) return false;
  if (asked.id_rows) {
    return (allowed & ids) && asked.id_length > 0 &&
           asked.id_length <= static_cast<uint64_t>(block.whole(max_length));
  }
  if (asked.images) return (allowed & images) != 0;
  if (!(allowed & texts)) return false;
  if (asked.longest_text > static_cast<uint64_t>(block.whole(max_characters))) return false;
  return asked.has_pairs ? (allowed & pairs) != 0 : (allowed & only_pairs) == 0;
}

Judgement judged(const Block& block, const Asked& asked, const OnTheWay& on_the_way, double at,
                 double chance) {
  if (!is_fresh(block, at) || !is_plain(block, asked)) return {};
  const double timeout = asked.timeout_s > 0 ? asked.timeout_s : block.real(slo_s);
  const Cost cost = expected(block, asked);
  const double seconds =
      block.real(s_of_token) * cost.tokens + block.real(s_of_square) * cost.squares;

  // The request is due at the earliest at `earliest` and at the latest at `window`: the factor by
  // which waits are stretched has fallen since the block was written.
  const double factor = block.real(due_factor);
  const double fallen = 1 - std::max(0.0, at - block.real(now)) / block.real(forget_s);
  const double lowest = 1 + (factor - 1) * std::max(0.0, fallen);
  const double planned =
      timeout - std::min(block.real(unseen_s), block.real(unseen_share) * timeout);
  double window = block.real(max_queue_s) + seconds, earliest = window;
  if (timeout < none) {
    window = std::min(window, planned / lowest);
    earliest = std::min(earliest, planned / factor);
  }
  if (!(window < none)) return {};  // no deadline: it comes after all requests that have one
  window += rounding_s;
  earliest -= rounding_s;

  const double running = std::max(0.0, block.real(busy_until) - at);
  const bool is_alone =
      !(block.real(requests) > 0) && running <= rounding_s && !(on_the_way.before_s > 0);
  if (is_alone) return {{}, seconds};
  if (at - block.real(begin) > near_slots / 2 * block.real(width_s)) return {{}, seconds};

  size_t region = 0;
  int64_t priority = 0;
  double before = 0, latest = none, unused = 0, all_s = running;
  if (find_level(block, asked.priority, &region, &priority)) {
    Slots(block, region).around(at + earliest, &before, &unused);
    Slots(block, region).around(at + window, &unused, &latest);
    all_s += Slots(block, region).total();
  } else {
    priority = asked.priority;
  }
  const double room =
      window - std::min(block.real(margin_s), block.real(most_margin) * std::max(window, 0.0));
  const double ahead = running + before + on_the_way.before_s, slack = latest - at - running;
  const double active_tenants = block.real(active);
  const bool know_active =
      active_tenants >= 2 && at - block.real(oldest_asked) < block.real(window_s) - rounding_s;
  const double share = room / (know_active ? active_tenants : 1);
  const double own =
      know_active ? own_seconds(block, asked.tenant, priority) + on_the_way.own_s : 0;
  char words[400];
  if (ahead + seconds > room + rounding_s) {
    snprintf(words, sizeof words,
             "got %.3f s of work before this request of %.3f s, wanted at most %.3f s to answer it "
             "in time",
             ahead, seconds, std::max(room - seconds, 0.0));
  } else if (slack < seconds - rounding_s) {
    snprintf(words, sizeof words,
             "got %.3f s of work that comes before other requests, wanted at most %.3f s to answer "
             "those in time",
             seconds, std::max(slack, 0.0));
  } else if (own > block.real(none_s) + rounding_s && own + seconds > share + rounding_s &&
             all_s + seconds > block.real(above_share) * (room - share) + rounding_s) {
    snprintf(words, sizeof words,
             "got %.3f s of work of one tenant, wanted at most %.3f s where %.0f tenants ask", own,
             std::max(share - seconds, 0.0), active_tenants);
  } else {
    return {{}, seconds};
  }
  const double spread = 1 + block.real(jitter) * (2 * chance - 1);
  const double retry_s = std::max(all_s, block.real(least_retry_s)) * spread;
  char whole[500];
  snprintf(whole, sizeof whole, "queue: %s; allow it more; try again in %.1f s", words,
           std::max(retry_s, 0.1));
  return {whole, seconds};
}

}  // namespace

Judgement judgement(const Block& block, const Asked& asked, const OnTheWay& on_the_way, double at,
                    double chance) {
  const uint64_t kind = block.acquire(layout);
  if (kind != encoder && kind != generation) return {};
  const uint64_t seen = block.acquire(sequence);
  if (seen & 1) return {};
  // The block may have been written after the caller took the time.
  at = std::max(at, block.real(now));
  Judgement found;
  if (kind == generation) {
    found.words = judged_generation(block, asked, at);
  } else {
    found = judged(block, asked, on_the_way, at, chance);
  }
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (block.whole(sequence) != static_cast<int64_t>(seen)) return {};
  return found;
}

}  // namespace admission
