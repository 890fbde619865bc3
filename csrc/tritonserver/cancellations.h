// Counts the requests that the server cancels, for the processes of models.
#pragma once

namespace cancellations {

// From now on counts in the file at `path`, which holds a number of 8 bytes. Returns false if this
// is not possible; then nothing is counted.
bool count_in(const char* path);

}  // namespace cancellations
