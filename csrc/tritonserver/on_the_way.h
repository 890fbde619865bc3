// Requests that were accepted here and that the instance has not judged yet. Their expected time
// counts as taken already; otherwise all requests that come within these milliseconds would find
// the same room.
#pragma once

#include <stdint.h>

#include <deque>
#include <string>

namespace admission {

struct OnTheWay {
  double before_s = 0;  // of the instance's time, at the request's priority and higher ones
  double own_s = 0;     // of `before_s`, that of the request's tenant
};

class RequestsOnTheWay {
 public:
  // Removes the requests that the instance has judged. `judged`: how many it has judged since it
  // began, in the order in which they were accepted. A request that never reached it, because its
  // client had left, is removed after a while.
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
