// Requests that were let in, and that the instance has not judged yet: what they will take counts
// as taken already, or all that come in these milliseconds would find the same room.
#pragma once

#include <stdint.h>

#include <deque>
#include <string>

namespace admission {

struct OnTheWay {
  double before_s = 0;  // of the instance's time: of a request's own and of higher priorities
  double own_s = 0;     // of them, its tenant's
};

class RequestsOnTheWay {
 public:
  // `judged`: by the instance since it began, in the order in which they were let in. One that
  // never came to it, as its client had left, is forgotten after a while.
  void forget(int64_t judged, double at) {
    constexpr double longest_s = 0.1;
    for (int64_t more = judged - judged_; more > 0 && !requests_.empty(); --more) {
      requests_.pop_front();
    }
    judged_ = judged;
    while (!requests_.empty() && at - requests_.front().at > longest_s) requests_.pop_front();
  }

  void add(double at, double seconds, int64_t priority, const std::string& tenant) {
    requests_.push_back({at, seconds, priority, tenant});
  }

  OnTheWay before(int64_t priority, const std::string& tenant) const {
    OnTheWay found;
    for (const Request& each : requests_) {
      if (each.priority > priority) continue;
      found.before_s += each.seconds;
      if (each.tenant == tenant) found.own_s += each.seconds;
    }
    return found;
  }

 private:
  struct Request {
    double at, seconds;
    int64_t priority;
    std::string tenant;
  };
  std::deque<Request> requests_;
  int64_t judged_ = 0;
};

}  // namespace admission
