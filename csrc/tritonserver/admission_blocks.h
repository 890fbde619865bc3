// The blocks of the model instances of this server.
#pragma once

#include <stdint.h>

#include <string>

#include "tritonserver/judgement.h"

namespace admission {

// Sets the prefix of the blocks' paths.
void watch_blocks(const char* prefix);

// The requests to a model that may be refused here.
struct Judged {
  bool generates = false;
  int64_t most_rows = 0;  // 0: none may be refused
  int64_t takes = 0, image_height = 0, image_width = 0;
};

// Returns which requests to a version of a model may be refused. `version` -1: the latest.
Judged judged_of(const std::string& model, int64_t version);

// Returns the message with which all instances of a model would refuse the request (that of the
// first one), and tells the instances that it is refused. Returns an empty string if an instance
// would accept the request, or if this is not known.
std::string refused_by_all(const std::string& model, int64_t version, const Asked& asked);

}  // namespace admission
