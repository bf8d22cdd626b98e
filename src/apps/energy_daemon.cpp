#include "apps/energy_daemon.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actuate/open.h"
#include "apps/stop_signals.h"
#include "base/clock.h"
#include "base/console.h"
#include "base/error.h"
#include "base/units.h"
#include "base/utf8.h"
#include "daemon/client.h"
#include "daemon/server.h"
#include "energy/open.h"

namespace molen::apps {
namespace {

struct DaemonArguments {
  std::string socket = daemon::kDefaultSocket, journals = "/run/molen/leases";
  std::vector<std::string> users, groups, least, most, limit_with, limit_users, meters{"auto"};
  std::optional<std::string> owners;
  bool exclusive = false;
  double read_every_s = 0.1;
};

daemon::ServerOptions daemon_options(const DaemonArguments& o) {
  daemon::ServerOptions options;
  options.socket = o.socket;
  for (const std::string& user : o.users) options.allowed.users.insert(daemon::user_named(user, "--allow-user"));
  for (const std::string& group : o.groups) options.allowed.groups.insert(daemon::group_named(group, "--allow-group"));
  for (const std::string& bound : o.least) options.leases.bounds.add_least(bound, "--least");
  for (const std::string& bound : o.most) options.leases.bounds.add_most(bound, "--most");
  for (const std::string& name : o.limit_with) {
    daemon::require_power_limit(name, "--limit-with");
    options.leases.limit_with.insert(name);
  }
  for (const std::string& user : o.limit_users) {
    const std::uint32_t uid = daemon::user_named(user, "--limit-user");
    options.limiters.users.insert(uid);
    options.allowed.users.insert(uid);
  }
  if (!o.limit_users.empty() && o.limit_with.empty())
    throw UsageError("--limit-user: there is nothing to limit; name the settings with --limit-with");
  if (o.owners && o.exclusive)
    throw UsageError("--exclusive: --owners says who may set which device; name one of them");
  if (o.owners) options.leases.ownership = daemon::Ownership(daemon::Ownership::Rule::kGrants, *o.owners);
  if (o.exclusive) options.leases.ownership = daemon::Ownership(daemon::Ownership::Rule::kAnyone);
  options.leases.open = [] { return actuate::open_actuators({}); };
  options.leases.journals = o.journals;
  options.leases.guardian = {"/proc/self/exe", "energy", "guard", "--journal"};
  options.read_every = Seconds(o.read_every_s);
  options.clock = [] { return now().value; };
  options.say = [](const std::string& text) { say(text); };
  return options;
}

int run_daemon(const DaemonArguments& o) {
  const StopSignals stop;
  daemon::ServerOptions options = daemon_options(o);
  const bool sets = o.owners || o.exclusive;
  energy::Meters meters = energy::open_meters(o.meters);
  std::int64_t read = 0;
  for (const auto& m : meters.meters) read += m->info().source != energy::Source::kNone ? 1 : 0;
  daemon::Server server(std::move(meters), std::move(options));
  fmt::print("{}; {}\n", counted(read, "meter"),
             sets ? counted(static_cast<std::int64_t>(actuate::open_actuators({}).actuators.size()), "setting")
                  : "no settings are made for jobs, because neither --owners nor --exclusive is given");
  fmt::print("listening on {}\n", printable(o.socket));
  std::fflush(stdout);
  server.run(stop.get());
  return kOk;
}

}  // namespace

void add_daemon_verb(CLI::App& energy, Chosen& chosen) {
  CLI::App* verb = energy.add_subcommand(
      "daemon", "read meters and set clocks and power limits of this node for jobs without rights (docs/energy.md)");
  auto o = std::make_shared<DaemonArguments>();
  verb->add_option("--socket", o->socket, "where jobs connect; they look there, or where MOLEN_ENERGY_SOCKET says")
      ->capture_default_str();
  verb->add_option("--allow-user", o->users, "a user whose processes may ask; root always may");
  verb->add_option("--allow-group", o->groups, "a group whose members may ask");
  verb->add_option("--owners", o->owners,
                   "a folder in which a prolog says which devices are whose: settings are made for their owners only");
  verb->add_flag("--exclusive", o->exclusive,
                 "nodes run one job at a time: settings of any device are made for whoever may ask");
  verb->add_option(
      "--least", o->least,
      "the least value that is set, such as nvml-power=300 W or cpufreq=1.2 GHz, besides the device's own");
  verb->add_option("--most", o->most, "the greatest value that is set, in the same form");
  verb->add_option("--limit-with", o->limit_with,
                   "a power limit, such as nvml-power or powercap, that the site's manager may lower on this node, "
                   "within --least and --most (molen energy manage)");
  verb->add_option("--limit-user", o->limit_users,
                   "a user who may pass on the manager's limits, and ask as with --allow-user; root always may");
  verb->add_option("--meters", o->meters, "as molen energy list --meters")->capture_default_str();
  verb->add_option("--read-every", o->read_every_s, "seconds for which all jobs get the same reading of a meter")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 60.0));
  verb->add_option("--journals", o->journals,
                   "a folder, of this user only, for what restores the settings after a crash")
      ->capture_default_str();
  verb->callback([&chosen, o] { chosen.action = [=] { return run_daemon(*o); }; });
}

}  // namespace molen::apps
