#include "daemon/limit_client.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace molen::daemon {
namespace {

constexpr double kMicrowattsPerWatt = 1e6;
constexpr Seconds kAskAgainAtLeast{0.5};

double as_watts(std::int64_t microwatts) {
  return static_cast<double>(microwatts) / kMicrowattsPerWatt;
}

}  // namespace

collect::Limitable in_watts(const std::vector<LimitableSetting>& settings) {
  collect::Limitable limits;
  std::int64_t left_out = 0;
  const auto say = [&](const std::string& text) { limits.problem += (limits.problem.empty() ? "" : "; ") + text; };
  for (const LimitableSetting& s : settings) {
    const double least_w = as_watts(s.least), most_w = as_watts(s.most);
    if (least_w < collect::kLeastLimitW || most_w > collect::kMostLimitW) {
      say(fmt::format("{} cannot be limited: its bounds, {:g} W to {:g} W, exceed {:g} W to {:g} W", s.id, least_w,
                      most_w, collect::kLeastLimitW, collect::kMostLimitW));
    } else if (limits.settings.size() == collect::kMostLimits) {
      ++left_out;
    } else {
      limits.settings.push_back({s.id, s.scope, least_w, most_w, std::nullopt});
      if (s.present)
        limits.settings.back().present_w =
            std::clamp(as_watts(*s.present), collect::kLeastLimitW, collect::kMostLimitW);
    }
  }
  if (left_out > 0)
    say(fmt::format("{} cannot be limited: a node has {} at most", counted(left_out, "more setting"),
                    collect::kMostLimits));
  return limits;
}

LimitClient::LimitClient(std::optional<fs::path> socket, std::function<void(const std::string&)> say, Seconds patience)
    : socket_(std::move(socket)), say_(std::move(say)), patience_(patience) {}

Result<Answer> LimitClient::ask(const Request& request) {
  if (!socket_)
    return Failure{fmt::format("this node has no energy daemon: there is no {}, and MOLEN_ENERGY_SOCKET names none",
                               kDefaultSocket)};
  if (!client_ || !client_->lost().empty()) {
    auto connected = Client::connect(*socket_, patience_);
    if (!connected) return Failure{connected.reason()};
    client_ = std::move(connected).value();
  }
  return client_->ask(request, Answer::Kind::kLimitable, patience_);
}

void LimitClient::trouble(const std::string& text) {
  if (!text.empty() && text != trouble_) say_(text);
  trouble_ = text;
}

collect::Limitable LimitClient::limitable() {
  collect::Limitable limits;
  const auto answer = ask({Request::Kind::kLimitable});
  if (!answer) {
    limits.problem = answer.reason();
    trouble(limits.problem);
    return limits;
  }
  limits = in_watts(answer.value().limitable.settings);
  if (!limits.problem.empty() && limits.problem != unfit_) say_(limits.problem);
  unfit_ = limits.problem;
  if (!trouble_.empty()) limits.problem = trouble_ + (unfit_.empty() ? "" : "; " + unfit_);
  if (limits.settings.empty() && limits.problem.empty())
    limits.problem = "the energy daemon of this node has no power limit that it may set (--limit-with)";
  return limits;
}

void LimitClient::keep(const collect::LimitOrder& order) {
  Request request{Request::Kind::kLimit};
  for (const collect::Limit& limit : order.limits)
    request.limits.push_back({limit.setting, std::llround(std::floor(limit.watts * kMicrowattsPerWatt))});
  request.seconds = order.seconds;
  ask_after_ = order.limits.empty() ? kAskAgain : std::clamp(Seconds(order.seconds / 2), kAskAgainAtLeast, kAskAgain);
  trouble(ask(request).reason());
}

}  // namespace molen::daemon
