#include "base/error.h"

namespace molen::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw Error("internal error, please report it: {} ({}:{}: {})", message, file, line, condition);
}

}  // namespace molen::detail
