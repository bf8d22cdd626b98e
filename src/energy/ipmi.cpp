// The kernel's IPMI device (linux/ipmi.h): a request is sent by one ioctl, and its response received by another.
#include <fcntl.h>
#include <linux/ipmi.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "energy/dcmi.h"

namespace molen::energy {
namespace {

// A request that takes longer has failed. A run's end waits for the last one.
constexpr std::chrono::milliseconds kTimeout(2000);

class KernelIpmi : public IpmiController {
 public:
  KernelIpmi(int device, fs::path file) : device_(device), file_(std::move(file)) {}
  ~KernelIpmi() override { ::close(device_); }

  Result<std::vector<std::uint8_t>> request(std::uint8_t net_function, std::uint8_t command,
                                            const std::vector<std::uint8_t>& data) override {
    std::vector<std::uint8_t> bytes = data;
    ipmi_system_interface_addr address{};
    address.addr_type = IPMI_SYSTEM_INTERFACE_ADDR_TYPE;
    address.channel = IPMI_BMC_CHANNEL;
    ipmi_req request{};
    request.addr = reinterpret_cast<unsigned char*>(&address);
    request.addr_len = sizeof address;
    request.msgid = ++number_;
    request.msg = {net_function, command, static_cast<unsigned short>(bytes.size()), bytes.data()};
    if (::ioctl(device_, IPMICTL_SEND_COMMAND, &request) < 0) return failed("sending a request");
    return response();
  }

 private:
  // Returns the response to the last request. One to an earlier request, which came too late, is dropped.
  Result<std::vector<std::uint8_t>> response() {
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd ready{device_, POLLIN, 0};
      const int events = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
      if (events < 0 && errno == EINTR) continue;
      if (events < 0) return failed("waiting for a response");
      if (events == 0)
        return Failure{fmt::format("{}: no response within {} s", file_.string(), kTimeout.count() / 1000)};
      std::uint8_t data[IPMI_MAX_MSG_LENGTH];
      ipmi_system_interface_addr address{};
      ipmi_recv received{};
      received.addr = reinterpret_cast<unsigned char*>(&address);
      received.addr_len = sizeof address;
      received.msg.data = data;
      received.msg.data_len = sizeof data;
      if (::ioctl(device_, IPMICTL_RECEIVE_MSG_TRUNC, &received) < 0) return failed("receiving a response");
      if (received.msgid != number_) continue;
      if (received.msg.data_len == 0) return Failure{fmt::format("{}: an empty response", file_.string())};
      if (data[0] != 0)
        return Failure{
            fmt::format("{}: the controller refused the request with code 0x{:02x}", file_.string(), data[0])};
      return std::vector<std::uint8_t>(data + 1, data + received.msg.data_len);
    }
  }

  Failure failed(const char* what) const {
    return {fmt::format("{}: {}: {}", file_.string(), what, std::strerror(errno))};
  }

  int device_;
  fs::path file_;
  long number_ = 0;
};

}  // namespace

Result<std::shared_ptr<IpmiController>> kernel_ipmi(const Machine& machine) {
  const fs::path file = machine.dev / "ipmi0";
  const int device = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (device < 0) return Failure{fmt::format("{}: {}", file.string(), std::strerror(errno))};
  return std::shared_ptr<IpmiController>(std::make_shared<KernelIpmi>(device, file));
}

}  // namespace molen::energy
