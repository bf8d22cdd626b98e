// Reads the power of a whole node from its board's controller (BMC), by the command Get Power Reading of DCMI 1.5
// (section 6.6.1) through the kernel's IPMI device, /dev/ipmi0, which root may open.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// The controller, which tests replace.
class IpmiController {
 public:
  virtual ~IpmiController() = default;
  // Sends a request, and returns the data of the response without its completion code, which was 0.
  virtual Result<std::vector<std::uint8_t>> request(std::uint8_t net_function, std::uint8_t command,
                                                    const std::vector<std::uint8_t>& data) = 0;
};
// Opens the kernel's device of a machine; a failure says why it cannot be used.
Result<std::shared_ptr<IpmiController>> kernel_ipmi(const Machine& machine);

struct DcmiPower {
  double watts = 0.0;       // now
  double averaged_s = 0.0;  // the period of the controller's statistics
};
Result<DcmiPower> read_dcmi_power(IpmiController& controller);

// Opens the scope "node". A thread of its own asks the controller every `ask_every`.
Meters open_dcmi(const Machine& machine, const Result<std::shared_ptr<IpmiController>>& controller,
                 Seconds ask_every = Seconds(1.0));

}  // namespace molen::energy
