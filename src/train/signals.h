// Ctrl-C and SIGTERM: the first asks the loop to save and stop, the second ends the process at once.
#pragma once

namespace molen::train {

void catch_stop_signals();
bool stop_requested();
void clear_stop_request();

}  // namespace molen::train
