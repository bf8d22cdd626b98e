#include "energy/dcmi.h"

#include "energy/polled_power.h"

namespace molen::energy {
namespace {

constexpr std::uint8_t kGroupExtension = 0x2C;
constexpr std::uint8_t kDcmiGroup = 0xDC;
constexpr std::uint8_t kGetPowerReading = 0x02;
constexpr std::uint8_t kSystemPower = 0x01;
constexpr std::uint8_t kMeasuring = 0x40;  // the bit of the state byte that says that power is measured
constexpr std::size_t kReplySize = 18;     // with the group's byte

// Controllers are often busy for some seconds.
constexpr double kLongestSilenceS = 15.0;

std::uint32_t little_endian(const std::vector<std::uint8_t>& bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value |= std::uint32_t{bytes[at + i]} << (8 * i);
  return value;
}

}  // namespace

Result<DcmiPower> read_dcmi_power(IpmiController& controller) {
  const auto reply = controller.request(kGroupExtension, kGetPowerReading, {kDcmiGroup, kSystemPower, 0, 0});
  if (!reply) return Failure{reply.reason()};
  const auto& bytes = reply.value();
  if (bytes.size() < kReplySize || bytes[0] != kDcmiGroup)
    return Failure{fmt::format("the controller's answer of {} bytes is no power reading of DCMI", bytes.size())};
  if ((bytes[17] & kMeasuring) == 0) return Failure{"the controller does not measure power now"};
  const std::uint32_t watts = little_endian(bytes, 1, 2);
  if (watts == 0) return Failure{"the controller reads 0 W"};
  return DcmiPower{static_cast<double>(watts), 1e-3 * little_endian(bytes, 13, 4)};
}

Meters open_dcmi(const Machine& machine, const Result<std::shared_ptr<IpmiController>>& controller, Seconds ask_every) {
  Meters found;
  const auto power =
      controller ? read_dcmi_power(*controller.value()) : Result<DcmiPower>(Failure{controller.reason()});
  if (!power) {
    found.unavailable.push_back({"dcmi", "node", power.reason()});
    return found;
  }
  found.meters.push_back(std::make_unique<PolledMeter>(
      MeterInfo{"dcmi", "node", Source::kPower,
                fmt::format("/dev/ipmi0, Get Power Reading of DCMI every {} s", ask_every.value), Seconds(0), true},
      [asked = controller.value()]() -> Result<double> {
        const auto now = read_dcmi_power(*asked);
        if (!now) return Failure{now.reason()};
        return now.value().watts;
      },
      machine.clock, power.value().watts, kLongestSilenceS, ask_every));
  return found;
}

}  // namespace molen::energy
