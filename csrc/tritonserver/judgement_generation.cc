// Judges requests as engine/admission.py does, from what its block says; judgement.cc does so for
// encoders.
#include <math.h>
#include <stdio.h>

#include <algorithm>

#include "tritonserver/judgement.h"

namespace admission {
namespace {

constexpr double rounding_s = 1e-6;

// For counts, none negative: with some compilers floor() and ceil() would need libm.
double rounded_down(double count) {
  return static_cast<double>(static_cast<int64_t>(count));
}
double rounded_up(double count) {
  return rounded_down(count) + (rounded_down(count) < count);
}

// Returns whether the request is valid, as far as is known before a request is judged.
bool is_plain(const Block& block, const Asked& asked) {
  const uint64_t longest = static_cast<uint64_t>(block.whole(max_length));
  const uint64_t most = static_cast<uint64_t>(block.whole(max_request_tokens));
  if (asked.new_tokens < 1 || asked.new_tokens >= longest || asked.new_tokens > most) return false;
  if (asked.prompt_characters) {
    return asked.prompt_characters <= static_cast<uint64_t>(block.whole(max_characters));
  }
  // A source has the encoder's limits, which are not known here.
  if (block.whole(takes) & sources) return false;
  return asked.prompt_tokens > 0 && asked.prompt_tokens + asked.new_tokens <= longest &&
         asked.largest_id < block.whole(vocabulary);
}

// Returns the forecast of the priority, or of the next higher one; 0: there is none.
size_t forecast_of(const Block& block, int64_t priority) {
  const size_t count = std::min<size_t>(block.whole(forecasts), most_forecasts);
  size_t forecast = 0;
  for (size_t place = 0; place < count; ++place) {
    const size_t at = forecasts + 1 + place * forecast_words;
    if (block.whole(at + of_priority) <= priority) forecast = at;
  }
  return forecast;
}

// As Forecasts.begin of engine/forecast.py, for one slot. Returns 0 if the begin is not known, as
// for a request that goes before others of its priority.
double begin_of(const Block& block, size_t forecast, int64_t priority, double deadline,
                double wanted_pages) {
  if (block.whole(forecast + of_priority) == priority &&
      deadline < block.real(forecast + last_deadline)) {
    return 0;
  }
  double at = block.real(forecast + begins), room = block.real(forecast + free_pages);
  double slots = static_cast<double>(block.whole(forecast + free_slots));
  const int64_t count_of_ends = block.whole(forecast + ends);
  for (int64_t end = 0; end < count_of_ends && (slots < 1 || room < wanted_pages); ++end) {
    if (end >= static_cast<int64_t>(most_ends)) return 0;
    const size_t entry = forecast + first_end + 3 * end;
    at = std::max(at, block.real(entry));
    slots += block.real(entry + 1);
    room += block.real(entry + 2);
  }
  return at;
}

// Returns the part of `left_s` that may be planned with, as DueTimes.due of engine/due_times.py, or
// more: the factor may have fallen since the block was written.
double planned_of(const Block& block, double left_s, double at) {
  const double unseen = block.real(generation_unseen_share) * left_s;
  const double planned = left_s - std::min(block.real(generation_unseen_s), unseen);
  const double age = std::max(0.0, at - block.real(now)) / block.real(generation_forget_s);
  return planned / (1 + (block.real(generation_due_factor) - 1) * std::max(0.0, 1 - age));
}

// Returns what the tenant was given, if that is at least its share; 0: it is less, or is not known.
double given_above(const Block& block, const std::string& tenant) {
  const size_t count = std::min<size_t>(block.whole(above), most_above);
  for (size_t place = 0; place < count; ++place) {
    const size_t first = above + 1 + place * above_words;
    if (block.whole(first) == static_cast<int64_t>(tenant.size()) &&
        memcmp(block.text(first + 2), tenant.data(), tenant.size()) == 0) {
      return block.real(first + 1);
    }
  }
  return 0;
}

// As TenantShares.judge of engine/tenant_shares.py.
bool has_its_share(const Block& block, double given, double cost_s, double room_s, double at) {
  const double active = block.real(active_tenants);
  const bool are_known =
      active >= 2 && at - block.real(first_asked) < block.real(active_window_s) - rounding_s;
  return are_known && given > block.real(fair) &&
         block.real(waiting_s) + cost_s >
             block.real(above_parts) * (room_s - room_s / active) + rounding_s;
}

}  // namespace

std::string judged_generation(const Block& block, const Asked& asked, double at) {
  if (!is_fresh(block, at) || !is_plain(block, asked)) return {};
  char words[300];
  const double waiting = block.real(taken) - block.real(max_sequences);
  if (waiting >= block.real(max_waiting)) {
    snprintf(words, sizeof words,
             "queue: got %.0f sequences waiting, wanted fewer than %.0f; try again later, or raise "
             "max_waiting",
             waiting, block.real(max_waiting));
    return words;
  }
  const double left_s = asked.timeout_s > 0 ? asked.timeout_s : block.real(objective_s);
  const double configured_s = block.real(longest_queue_s);
  if (std::min(left_s, configured_s) == INFINITY || !(block.real(share) > 0)) return {};
  if (at > block.real(kept_until) - rounding_s) return {};  // the forecast is too old

  const double own_tokens = static_cast<double>(asked.prompt_tokens);
  const double text_tokens =
      rounded_down(static_cast<double>(asked.prompt_characters) / block.real(characters_of_token)) +
      1;
  const double tokens = asked.prompt_characters
                            ? std::min(text_tokens, static_cast<double>(block.whole(max_length)))
                            : own_tokens;
  const double new_tokens =
      std::max(1.0, block.real(share) * static_cast<double>(asked.new_tokens));
  const double page = block.real(page_size), shared = rounded_down(tokens / page);
  const double own_pages = rounded_up((tokens - shared * page + new_tokens) / page);
  const double wanted_pages = std::min(shared + own_pages, block.real(pages));

  const size_t forecast = forecast_of(block, asked.priority);
  if (forecast == 0) return {};
  const double begin = begin_of(block, forecast, asked.priority, at + left_s, wanted_pages);
  const double wait_s = begin - at;
  if (wait_s <= rounding_s) return {};
  const double given = given_above(block, asked.tenant);
  const bool stands = given > 0 && given >= block.real(fair) &&
                      at - block.real(forecast + full_since) > left_s + rounding_s;
  const double longest_s =
      stands ? std::min(configured_s, block.real(standing_share) * left_s) : configured_s;
  const double planned_s = planned_of(block, left_s, at);
  const double run_s = block.real(s_of_prompt_token) * tokens + new_tokens * block.real(step_s);
  const double end_s = wait_s + run_s;
  double retry_s;
  if (wait_s > longest_s + rounding_s) {
    snprintf(words, sizeof words, "got a predicted wait of %.2f s, wanted at most %.2f s", wait_s,
             longest_s);
    retry_s = wait_s - longest_s;
  } else if (end_s > planned_s + rounding_s) {
    snprintf(words, sizeof words,
             "got a predicted wait of %.2f s, and %.2f s until the last token, wanted at most %.2f "
             "s; allow it more, or ask for fewer tokens",
             wait_s, end_s, planned_s);
    retry_s = std::min(wait_s, end_s - planned_s);
  } else {
    const double part = std::max(1 / block.real(max_sequences), wanted_pages / block.real(pages));
    const double prompt_s = block.real(s_of_prompt_token) * tokens;
    const double cost_s = prompt_s + part * new_tokens * block.real(step_s);
    const double room_s = std::min(planned_s - run_s, longest_s);
    if (!has_its_share(block, given, cost_s, room_s, at)) return {};
    snprintf(words, sizeof words,
             "got a tenant with %.1f times the work of the last minute that the %.0f which ask had "
             "on average, wanted at most 1.0 while others wait",
             given / block.real(fair), block.real(active_tenants));
    retry_s = block.real(waiting_s);
  }
  char whole[400];
  snprintf(whole, sizeof whole, "queue: %s; try again in %.1f s", words, std::max(retry_s, 0.1));
  return whole;
}

}  // namespace admission
