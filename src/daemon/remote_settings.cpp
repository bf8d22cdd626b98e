#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <utility>

#include "actuate/open.h"
#include "base/error.h"
#include "daemon/client.h"
#include "energy/nvml/library.h"

namespace molen::daemon {
namespace {

constexpr Seconds kListPatience{30.0}, kLeasePatience{120.0}, kSetPatience{30.0};

// A setting that the daemon makes. What it reads is what the daemon said last, which reads each change back.
class RemoteActuator : public actuate::Actuator {
 public:
  RemoteActuator(actuate::ActuatorInfo info, const SettingEntry& entry, std::shared_ptr<Client> client)
      : Actuator(std::move(info), {entry.readable ? entry.most : 0}),
        client_(std::move(client)),
        present_(entry.present) {}

  Result<actuate::State> read() const override {
    if (!present_)
      return Failure{fmt::format("{} of {}: the device does not tell what is set", info().name, info().scope)};
    return actuate::State{*present_};
  }
  const std::shared_ptr<Client>& client() const { return client_; }
  Result<actuate::Done> write(std::size_t, std::int64_t value) override {
    auto answer = client_->ask({Request::Kind::kSet, {info().id}, value}, Answer::Kind::kSet, kSetPatience);
    if (!answer) return Failure{answer.reason()};
    present_ = answer.value().present;
    return actuate::Done{};
  }

 private:
  std::shared_ptr<Client> client_;
  std::optional<std::int64_t> present_;
};

// Settings that the daemon restores: at `end`, or once the connection or this process has ended.
class RemoteLease : public actuate::HeldSettings {
 public:
  RemoteLease(std::vector<std::unique_ptr<RemoteActuator>> used, std::shared_ptr<Client> client)
      : used_(std::move(used)), client_(std::move(client)) {}
  ~RemoteLease() override { RemoteLease::end(); }

  std::size_t size() const override { return used_.size(); }
  const actuate::Actuator& actuator(std::size_t index) const override { return *used_.at(index); }
  Result<actuate::Done> set(std::size_t index, std::int64_t value) override {
    RemoteActuator& actuator = *used_.at(index);
    if (ended_) return Failure{"the lease has ended"};
    if (const auto possible = actuator.state_for(value); !possible) return Failure{possible.reason()};
    return actuator.write(0, value);
  }
  // The daemon has a journal of its own, which it writes at each change.
  Result<actuate::Done> announce(std::size_t index, const std::vector<std::int64_t>& values) override {
    for (const std::int64_t value : values)
      if (const auto possible = used_.at(index)->state_for(value); !possible) return Failure{possible.reason()};
    return keep_guarded();
  }
  Result<actuate::Done> keep_guarded() override {
    if (const std::string& why = client_->lost(); !why.empty()) return Failure{why};
    return actuate::Done{};
  }
  actuate::Restoration end() override {
    if (std::exchange(ended_, true)) return {};
    const auto answer = client_->ask({Request::Kind::kRestore}, Answer::Kind::kRestored, kLeasePatience);
    if (answer) return answer.value().restoration;
    actuate::Restoration none;  // the daemon, or its guardian, restores by itself
    none.notes.push_back(fmt::format("{}; what it had set is restored by it or by its guardian", answer.reason()));
    return none;
  }

 private:
  std::vector<std::unique_ptr<RemoteActuator>> used_;
  std::shared_ptr<Client> client_;
  bool ended_ = false;
};

// A job's own settings beside those that the daemon makes for it.
class HeldTogether : public actuate::HeldSettings {
 public:
  HeldTogether(std::unique_ptr<HeldSettings> first, std::unique_ptr<HeldSettings> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  std::size_t size() const override { return first_->size() + second_->size(); }
  const actuate::Actuator& actuator(std::size_t index) const override {
    return index < first_->size() ? first_->actuator(index) : second_->actuator(index - first_->size());
  }
  Result<actuate::Done> set(std::size_t index, std::int64_t value) override {
    return index < first_->size() ? first_->set(index, value) : second_->set(index - first_->size(), value);
  }
  Result<actuate::Done> announce(std::size_t index, const std::vector<std::int64_t>& values) override {
    return index < first_->size() ? first_->announce(index, values) : second_->announce(index - first_->size(), values);
  }
  Result<actuate::Done> keep_guarded() override {
    auto guarded = first_->keep_guarded();
    return guarded ? second_->keep_guarded() : guarded;
  }
  actuate::Restoration end() override {
    actuate::Restoration all = first_->end();
    const actuate::Restoration more = second_->end();
    all.notes.insert(all.notes.end(), more.notes.begin(), more.notes.end());
    all.restored += more.restored;
    all.left_alone += more.left_alone;
    all.failed += more.failed;
    return all;
  }

 private:
  std::unique_ptr<HeldSettings> first_, second_;
};

// The scopes of NVIDIA GPUs as this process numbers those that it sees, by their UUID.
std::map<std::string, std::string> scopes_of_gpus(const energy::NvmlOptions& options) {
  std::map<std::string, std::string> scopes;
  const auto library = energy::NvmlLibrary::load(options.library);
  if (!library) return scopes;
  const auto gpus = library.value()->gpus(options.visible);
  for (std::size_t i = 0; gpus && i < gpus.value().size(); ++i)
    if (gpus.value()[i].failure.empty()) scopes[gpus.value()[i].uuid] = fmt::format("gpu{}", i);
  return scopes;
}

void add_setting(actuate::Actuators& here, const SettingEntry& entry, const std::string& scope,
                 const std::shared_ptr<Client>& client) {
  actuate::ActuatorInfo info;
  info.id = entry.id;
  info.name = entry.name;
  info.scope = scope;
  info.control = entry.control;
  info.kind = entry.kind;
  info.detail = entry.detail;
  info.through = fmt::format("daemon at {}", client->socket().string());
  info.parts = {{entry.id, entry.least, entry.most}};
  info.values = entry.values;
  info.step = entry.step;
  info.readable = entry.readable;
  // What this process cannot set itself is no news beside it; NVML's reason is one for both settings of a GPU.
  std::erase_if(here.unavailable, [&](const actuate::Unavailable& u) {
    return u.scope == scope && (u.meter == entry.name || (u.meter == "nvml" && entry.name.starts_with("nvml-")));
  });
  here.actuators.push_back(std::make_unique<RemoteActuator>(std::move(info), entry, client));
}

}  // namespace

void add_settings(actuate::Actuators& here, const fs::path& socket, const energy::NvmlOptions& nvml) {
  const auto refuse = [&](const std::string& name, const std::string& scope, const std::string& why) {
    here.unavailable.push_back({name, scope, why});
  };
  auto connected = Client::connect(socket, kListPatience);
  if (!connected) return refuse("daemon", "node", connected.reason());
  const std::shared_ptr<Client> client = std::move(connected).value();
  const auto answer = client->ask({Request::Kind::kList}, Answer::Kind::kListing, kListPatience);
  if (!answer) return refuse("daemon", "node", answer.reason());
  const auto gpus = scopes_of_gpus(nvml);
  // Where the process sees a part of AMD's GPUs, nothing tells which of the daemon's they are.
  const bool amd_hidden = std::any_of(here.unavailable.begin(), here.unavailable.end(), [](const auto& u) {
    return u.meter == "amdgpu-power" && u.reason.find("VISIBLE_DEVICES") != std::string::npos;
  });
  // Returns the scope by which this process knows a setting of the daemon; "" where it does not see the device.
  const auto scope_here = [&](const std::string& id, const std::string& scope) {
    const std::size_t colon = id.find(':');
    const std::string name = id.substr(0, colon);
    if (name == "amdgpu-power" && amd_hidden) return std::string();
    if (!name.starts_with("nvml-")) return scope;
    const auto gpu = gpus.find(id.substr(colon + 1));
    return gpu == gpus.end() ? std::string() : gpu->second;
  };
  for (const SettingEntry& entry : answer.value().listing.settings) {
    const bool own = std::any_of(here.actuators.begin(), here.actuators.end(),
                                 [&](const auto& a) { return a->info().id == entry.id; });
    const std::string scope = scope_here(entry.id, entry.scope);
    if (own || scope.empty()) continue;
    if (entry.holder.empty())
      add_setting(here, entry, scope, client);
    else
      refuse(entry.name, scope, fmt::format("{} has it from the energy daemon, and only one job may", entry.holder));
  }
  for (const auto& w : answer.value().listing.withheld)
    if (const std::string scope = scope_here(w.id, w.scope); !scope.empty())
      refuse(w.id.substr(0, w.id.find(':')), scope,
             fmt::format("the energy daemon at {}: {}", socket.string(), w.reason));
  std::stable_sort(here.actuators.begin(), here.actuators.end(),
                   [](const auto& a, const auto& b) { return a->info().scope < b->info().scope; });
}

actuate::Actuators open_actuators_here() {
  const actuate::OpenOptions options = actuate::options_here();
  actuate::Actuators here = actuate::open_actuators(options);
  if (const auto socket = socket_here()) add_settings(here, *socket, options.nvml);
  return here;
}

Result<std::unique_ptr<actuate::HeldSettings>> hold(actuate::Actuators here, const std::vector<std::string>& ids,
                                                    actuate::SessionOptions options) {
  std::vector<std::unique_ptr<RemoteActuator>> leased;
  std::vector<std::string> own, of_daemon;
  std::shared_ptr<Client> client;
  for (const std::string& id : ids) {
    const auto at = std::find_if(here.actuators.begin(), here.actuators.end(),
                                 [&](const auto& a) { return a && a->info().id == id; });
    auto* remote = at == here.actuators.end() ? nullptr : dynamic_cast<RemoteActuator*>(at->get());
    if (remote == nullptr) {
      own.push_back(id);
      continue;
    }
    of_daemon.push_back(id);
    client = remote->client();
    static_cast<void>(at->release());
    leased.emplace_back(remote);
  }
  // A session sets nothing through the daemon.
  std::erase_if(here.actuators,
                [](const auto& a) { return a == nullptr || dynamic_cast<RemoteActuator*>(a.get()) != nullptr; });
  std::unique_ptr<actuate::HeldSettings> session, lease;
  if (!own.empty() || of_daemon.empty()) {
    auto opened = actuate::Session::open(std::move(here), own, std::move(options));
    if (!opened) return Failure{opened.reason()};
    session = std::move(opened).value();
  }
  if (of_daemon.empty()) return session;
  const auto answer = client->ask({Request::Kind::kLease, of_daemon}, Answer::Kind::kLeased, kLeasePatience);
  if (!answer) return Failure{answer.reason()};
  lease = std::make_unique<RemoteLease>(std::move(leased), client);
  if (!session) return lease;
  return std::unique_ptr<actuate::HeldSettings>(std::make_unique<HeldTogether>(std::move(session), std::move(lease)));
}

}  // namespace molen::daemon
