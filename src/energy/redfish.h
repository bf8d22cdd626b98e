// Reads the power of a whole node from its board's controller (BMC) by Redfish (DMTF DSP0266 and DSP0268), over HTTPS.
// Unlike DCMI this needs no right on the node, but a network to the controller and a user there.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// The controller, which tests replace.
class RedfishService {
 public:
  virtual ~RedfishService() = default;
  // Returns the body of a resource such as "/redfish/v1/Chassis"; nothing where the controller has none (HTTP 404).
  virtual Result<std::optional<std::string>> get(const std::string& path) = 0;
};

// The parts of "https://HOST[:PORT][/PATH[#POINTER]]". In HOST "{host}" stands for this host's name up to its first
// dot.
struct RedfishUrl {
  std::string server;   // "https://node7-bmc"
  std::string path;     // of the resource that has the power; empty: it is looked for
  std::string pointer;  // JSON pointer (RFC 6901) to the watts in it
};
// Throws UsageError for anything else, such as a user in the URL: users and passwords belong in a netrc file.
RedfishUrl parse_redfish_url(const std::string& text, const std::string& host);

// Opens a controller with libcurl, which is loaded at run time. User and password come from the netrc file that NETRC
// names (~/.netrc by default), and the certificates to trust from the file that CURL_CA_BUNDLE names, in place of the
// system's. A proxy is not used. A request takes at most 5 s, for which the end of a meter may wait. A failure says why
// there is no libcurl.
Result<std::shared_ptr<RedfishService>> https_redfish(const RedfishUrl& url);

// Finds the resource and the pointer of the power: of the only chassis that has PowerWatts in its EnvironmentMetrics or
// PowerConsumedWatts in its Power. A failure names what there is where no chassis has one, or several have. An answer
// that fails is a failure of the search: that chassis may be the node's.
Result<RedfishUrl> find_redfish_power(RedfishService& service, RedfishUrl url);
// Returns the watts now.
Result<double> read_redfish_power(RedfishService& service, const RedfishUrl& url);

// Opens the scope "node". A thread of its own asks the controller every `ask_every`.
Meters open_redfish(const Machine& machine, const RedfishUrl& url,
                    const Result<std::shared_ptr<RedfishService>>& service, Seconds ask_every = Seconds(2.0));

}  // namespace molen::energy
