#include "base/processor.h"

#include "base/file.h"

namespace molen {

std::string cpu_model() {
  const std::string info = read_file("/proc/cpuinfo");
  const auto at = info.find("model name");
  if (at == std::string::npos) return "unknown";
  const auto colon = info.find(':', at), end = info.find('\n', at);
  return info.substr(colon + 2, end - colon - 2);
}

}  // namespace molen
