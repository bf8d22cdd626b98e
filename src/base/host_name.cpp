#include "base/host_name.h"

#include <unistd.h>

#include <array>

namespace molen {

std::string host_name() {
  std::array<char, 256> name{};  // a byte more than a name may have
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace molen
