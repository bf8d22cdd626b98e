// Answers of a controller, one after the other, divided by bytes of 0: each is a power, or a reason that is not empty.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/error.h"
#include "energy/redfish.h"

namespace {

class Answers : public molen::energy::RedfishService {
 public:
  explicit Answers(std::string all) : all_(std::move(all)) {}
  molen::Result<std::optional<std::string>> get(const std::string& path) override {
    if (at_ > all_.size()) return molen::Failure{path + ": no answer"};
    if (at_ == all_.size()) return ++at_, std::optional<std::string>();
    const std::size_t begin = at_, end = std::min(all_.find('\0', begin), all_.size());
    at_ = end + 1;
    return std::optional(all_.substr(begin, end - begin));
  }

 private:
  std::string all_;
  std::size_t at_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const energy::RedfishUrl url = energy::parse_redfish_url(text.substr(0, text.find('\0')), "node");
    if (!url.server.starts_with("https://") || url.path.empty() != url.pointer.empty()) std::abort();
  } catch (const UsageError&) {
  }
  Answers found(text);
  const auto place = energy::find_redfish_power(found, energy::parse_redfish_url("https://bmc", "node"));
  if (place.ok() ? place.value().pointer.empty() : place.reason().empty()) std::abort();
  Answers power(text);
  const auto watts = energy::read_redfish_power(power, energy::parse_redfish_url("https://bmc/power#/Watts", "node"));
  if (watts.ok() ? !(watts.value() > 0.0) : watts.reason().empty()) std::abort();
  return 0;
}
