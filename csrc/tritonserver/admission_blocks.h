// The blocks of the model instances of this server.
#pragma once

#include <stdint.h>

#include <string>

#include "tritonserver/judgement.h"

namespace admission {

// How the paths of the blocks begin.
void watch_blocks(const char* prefix);

// Which requests to a model may be refused.
struct Judged {
  bool generates = false;
  int64_t most_rows = 0;  // 0: none is
  int64_t takes = 0, image_height = 0, image_width = 0;
};

// `version`: -1: the latest.
Judged judged_of(const std::string& model, int64_t version);

// The words with which all instances of a model would refuse the request, the first one's, which
// are told that; empty where one would not, or where that is not known.
std::string refused_by_all(const std::string& model, int64_t version, const Asked& asked);

}  // namespace admission
