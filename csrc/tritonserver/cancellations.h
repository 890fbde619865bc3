// The requests that the server cancels, counted for the processes of models.
#pragma once

namespace cancellations {

// Counts from now on in the file of that path, a number of 8 bytes. False: nothing is counted.
bool count_in(const char* path);

}  // namespace cancellations
