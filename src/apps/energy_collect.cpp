#include "apps/energy_collect.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "apps/stop_signals.h"
#include "base/clock.h"
#include "base/console.h"
#include "base/error.h"
#include "base/units.h"
#include "base/utf8.h"
#include "collect/readings.h"
#include "collect/sender.h"
#include "collect/server.h"
#include "collect/token.h"
#include "daemon/client.h"
#include "energy/open.h"

namespace molen::apps {
namespace {

constexpr double kLastSendS = 5.0;  // for the last records, after a signal

struct CollectArguments {
  std::string database;
  std::vector<std::string> listen{fmt::format("127.0.0.1:{}", collect::kDefaultPort)};
  std::optional<std::string> token_file;
};

int run_collect(const CollectArguments& o) {
  const StopSignals stop;
  collect::ServerOptions options;
  for (const std::string& address : o.listen) options.listen.push_back(collect::parse_address(address, "--listen"));
  if (o.token_file) options.token = collect::read_token(*o.token_file);
  options.say = [](const std::string& text) { say(text); };
  auto database = collect::open_database(o.database);
  fmt::print("records go to {}\n", printable(database->name()));
  collect::Server server(std::move(database), std::move(options));
  for (const auto& address : server.addresses()) fmt::print("listening on {}\n", printable(address.text()));
  std::fflush(stdout);
  server.run(stop.get());
  const collect::ServerTotals totals = server.totals();
  fmt::print("stored {} with {} and {}; {} came again; {} cut of {}\n", counted(totals.stored.batches, "batch"),
             counted(totals.stored.periods, "period"), counted(totals.stored.events, "event"),
             counted(totals.stored.duplicates, "batch"), totals.cut, counted(totals.connections, "connection"));
  return kOk;
}

struct SendArguments {
  std::string to, spool = "energy.spool";
  std::optional<std::string> node, token_file;
  std::vector<std::string> meters{"auto"};
  double every_s = 60;
  std::int64_t count = 0;
  collect::Labels labels;
};

std::string this_host() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return collect::as_name(name);
}

void require_label(const char* flag, const std::string& label, bool needed = false) {
  if ((needed || !label.empty()) && !collect::is_name(label))
    throw UsageError("{}: '{}' must be 1 to {} printable ASCII characters without spaces", flag, label,
                     collect::kMostNameBytes);
}

void add_all(collect::Spool& spool, std::vector<collect::Batch> batches) {
  for (auto& batch : batches) spool.add(std::move(batch));
}

// Measures period after period and sends meanwhile, until there were `count` of them or a signal comes.
void send_periods(const SendArguments& o, collect::Readings& readings, collect::Spool& spool, collect::Sender& sender,
                  int stop) {
  double due_s = now().value;
  for (std::int64_t period = 0; o.count == 0 || period < o.count; ++period) {
    // Periods that were missed, because the machine slept, are one long period.
    due_s = std::max(due_s + o.every_s, now().value);
    const bool stopped = sender.run(due_s, stop);
    add_all(spool, readings.next());
    if (stopped) break;
  }
}

int run_send(const SendArguments& o) {
  const StopSignals stop;
  if (o.node) require_label("--node", *o.node, true);
  require_label("--job", o.labels.job);
  require_label("--step", o.labels.step);
  require_label("--user", o.labels.user);
  collect::SenderOptions options;
  options.to = collect::parse_address(o.to, "--to");
  options.node = o.node.value_or(this_host());
  if (o.token_file) options.token = collect::read_token(*o.token_file);
  options.say = [](const std::string& text) { say(text); };
  collect::Spool spool(o.spool, options.node, {.say = options.say});
  energy::OpenOptions meters;
  meters.daemon = daemon::open_meters_here;
  collect::Readings readings(energy::open_meters(o.meters, meters), o.labels);
  collect::Sender sender(options, spool);
  add_all(spool, readings.describe());
  send_periods(o, readings, spool, sender, stop.get());
  add_all(spool, collect::in_batches({}, {{wall_time(), "stop", "", 0}}));
  sender.run(now().value + kLastSendS, -1, collect::Sender::Until::kEmpty);
  if (spool.empty()) return kOk;
  say(fmt::format("{} not acknowledged; {} has what waits, and the next start sends it",
                  counted(spool.end() - spool.begin(), "batch"), o.spool));
  return kFailed;
}

void add_collect_verb(CLI::App& energy, Chosen& chosen) {
  CLI::App* verb = energy.add_subcommand("collect", "store the energy of a site's nodes (docs/energy.md)");
  auto o = std::make_shared<CollectArguments>();
  verb->add_option("--database", o->database, "sqlite:FILE, or the URI of a PostgreSQL database (postgresql://...)")
      ->required();
  verb->add_option("--listen", o->listen, "HOST:PORT or unix:PATH; several may be given")->capture_default_str();
  verb->add_option("--token-file", o->token_file,
                   "a file with the secret that nodes must show; needed where other machines can connect");
  verb->callback([&chosen, o] { chosen.action = [=] { return run_collect(*o); }; });
}

void add_send_verb(CLI::App& energy, Chosen& chosen) {
  CLI::App* verb = energy.add_subcommand("send", "send the energy of this node to the collector, period by period");
  auto o = std::make_shared<SendArguments>();
  verb->add_option("--to", o->to, "the collector: HOST:PORT or unix:PATH")->required();
  verb->add_option("--every", o->every_s, "seconds of a period")->capture_default_str()->check(CLI::Range(0.1, 1800.0));
  verb->add_option("--count", o->count, "periods; 0: until SIGINT or SIGTERM")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--spool", o->spool, "the file that keeps what is not acknowledged")->capture_default_str();
  verb->add_option("--node", o->node, "the name of this node (default: the host's)");
  verb->add_option("--token-file", o->token_file, "a file with the secret of the collector");
  verb->add_option("--meters", o->meters, fmt::format("{}", fmt::join(energy::meter_names(), ", ")));
  verb->add_option("--job", o->labels.job, "the job that the energy belongs to");
  verb->add_option("--step", o->labels.step, "the step of the job");
  verb->add_option("--user", o->labels.user, "the user that the energy belongs to");
  verb->callback([&chosen, o] { chosen.action = [=] { return run_send(*o); }; });
}

}  // namespace

void add_collect_verbs(CLI::App& energy, Chosen& chosen) {
  add_collect_verb(energy, chosen);
  add_send_verb(energy, chosen);
}

}  // namespace molen::apps
