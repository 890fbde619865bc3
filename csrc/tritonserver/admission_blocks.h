// The blocks of the model instances of this server.
#pragma once

#include <stdint.h>

#include <string>

#include "tritonserver/judgement.h"

namespace admission {

// How the paths of the blocks begin.
void watch_blocks(const char* prefix);

// Of a request that may be refused; 0: none is. `version`: -1: the latest.
int64_t most_rows_of(const std::string& model, int64_t version);

// The words with which all instances of a model would refuse the request, the first one's, which
// are told that; empty where one would not, or where that is not known.
std::string refused_by_all(const std::string& model, int64_t version, const Asked& asked);

}  // namespace admission
