// Work of which several pieces are done at a time.
#pragma once

#include <cstddef>
#include <functional>

namespace molen {

// Calls work(0) to work(count - 1), `at_once` of them at a time, on this thread and on others. They begin in order.
// After an exception no further one begins. When those under way have ended, the exception of the lowest of them is
// thrown again, so that time does not decide which.
void each_at_once(std::size_t count, int at_once, const std::function<void(std::size_t)>& work);

}  // namespace molen
