#include "apps/energy_collect.h"

#include <fmt/format.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "apps/stop_signals.h"
#include "base/clock.h"
#include "base/console.h"
#include "base/error.h"
#include "base/host_name.h"
#include "base/units.h"
#include "base/utf8.h"
#include "collect/job_labels.h"
#include "collect/readings.h"
#include "collect/sender.h"
#include "collect/server.h"
#include "collect/token.h"
#include "collect/turn.h"
#include "collect/watchdog.h"
#include "daemon/client.h"
#include "daemon/limit_client.h"
#include "energy/open.h"

namespace molen::apps {
namespace {

constexpr double kLastSendS = 5.0;       // for the last records, after a signal
constexpr double kLookS = 0.5;           // between two looks at whether the next sender waits, or a question is due
constexpr double kSpoolWaitS = 10.0;     // for the sender before, which needs no more than kLastSendS
constexpr double kPatienceS = 10.0;      // before a sender says for whose turn it waits
constexpr double kNameWaitS = 2.0;       // for the name of a user
constexpr std::size_t kMostKept = 1000;  // batches in memory while another process has the spool
// A sender that was told to stop waits for the spool and sends; what it does beside them takes no time unless it hangs.
constexpr double kStopLimitS = 5.0 + collect::kSpoolStoppedWaitS + kLastSendS;

// A descriptor that is readable once a signal came or, if asked for, once the other end of standard input is closed: by
// whoever started this process, or by the kernel when that process dies.
class Stop {
 public:
  explicit Stop(bool until_hangup) : both_(::epoll_create1(EPOLL_CLOEXEC)) {
    watch(signals_.get(), EPOLLIN);
    if (!until_hangup) return;
    struct stat input {};
    // The end of a file or of a terminal's input is no hangup, so nothing would ever end this process.
    if (::fstat(STDIN_FILENO, &input) != 0 || !(S_ISFIFO(input.st_mode) || S_ISSOCK(input.st_mode)))
      throw UsageError("--until-hangup: standard input must be a pipe or a socket, whose other end is closed to stop");
    watch(STDIN_FILENO, EPOLLRDHUP);
  }
  int get() const { return both_.get(); }

 private:
  void watch(int descriptor, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    if (both_.get() < 0 || ::epoll_ctl(both_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0)
      throw Error("signals: {}", std::strerror(errno));
  }
  const StopSignals signals_;
  const Descriptor both_;
};

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
  std::optional<std::string> node, token_file, lock;
  bool until_hangup = false, obey_limits = false;
  std::vector<std::string> meters{"auto"};
  double every_s = 60;
  std::int64_t count = 0;
  collect::Labels labels;
  std::optional<std::uint32_t> uid, gid;
};

// Returns the member `name` of the entry that the function `get` finds for a number, or the number if there is no entry
// or the name service does not answer: nothing can interrupt that call, so it is made in a thread that ends with the
// process if need be.
template <class Entry, class Number>
std::string name_of_number(Number number, int (*get)(Number, Entry*, char*, std::size_t, Entry**), char* Entry::*name) {
  std::promise<std::string> promise;
  std::future<std::string> answer = promise.get_future();
  std::thread([=, promise = std::move(promise)]() mutable {
    std::vector<char> space(std::size_t{1} << 16);
    Entry entry{};
    Entry* found = nullptr;
    const bool known = get(number, &entry, space.data(), space.size(), &found) == 0 && found != nullptr;
    promise.set_value(known ? found->*name : "");
  }).detach();
  const bool in_time = answer.wait_for(std::chrono::duration<double>(kNameWaitS)) == std::future_status::ready;
  const std::string text = in_time ? answer.get() : "";
  return text.empty() ? std::to_string(number) : collect::as_name(text);
}

std::string this_host() {
  return collect::as_name(host_name());
}

void require_label(const char* flag, const std::string& label) {
  if (!label.empty() && !collect::is_name(label))
    throw UsageError("{}: '{}' must be 1 to {} printable ASCII characters without spaces", flag, label,
                     collect::kMostNameBytes);
}

// Makes a name of what a job is booked to. Such a text may be the user's own, who must not end the measurement by it.
void make_job_label(const char* what, std::string& label) {
  const std::string name = collect::as_job_label(label);
  if (name != label) say(fmt::format("the {} '{}' is recorded as '{}'", what, printable(label), name));
  label = name;
}

void add_all(collect::Spool& spool, std::vector<collect::Batch> batches) {
  for (auto& batch : batches) spool.add(std::move(batch));
}

// Opens the spool. While another process has it longer than a sender needs, measures on: the periods stay in memory, in
// `kept`, as long as there is room, and then one period is longer. Throws as the spool does; with a turn only after a
// stop, or if it is not for want of the lock.
std::unique_ptr<collect::Spool> open_spool(const SendArguments& o, const collect::SenderOptions& options,
                                           collect::Readings& readings, int stop, std::vector<collect::Batch>& kept,
                                           std::int64_t& periods) {
  const double wait_s = o.lock ? std::min(kSpoolWaitS, o.every_s) : 0;
  for (bool said = false;;) {
    const double look_s = said || !o.lock ? wait_s : kSpoolWaitS;
    try {
      return std::make_unique<collect::Spool>(
          o.spool, options.node, collect::SpoolOptions{.wait_s = look_s, .stop = stop, .say = options.say});
    } catch (const collect::SpoolInUse&) {
      pollfd polled{stop, POLLIN, 0};
      if (!o.lock || ::poll(&polled, 1, 0) > 0) throw;
    }
    if (!std::exchange(said, true))
      say(fmt::format("{}: another process has it after {:g} s; records are in memory until it is free", o.spool,
                      kSpoolWaitS));
    if (kept.size() >= kMostKept || (o.count > 0 && periods + 1 >= o.count)) continue;
    for (auto& batch : readings.next()) kept.push_back(std::move(batch));
    ++periods;
  }
}

// Sends until a time. With `limits` it also asks for the limits of the node: every `every_s`, and as often as they need
// to be renewed. Returns whether a signal came.
bool send_until(double until_s, double every_s, collect::Sender& sender, int stop, daemon::LimitClient* limits,
                double& asked_s) {
  if (limits == nullptr) return sender.run(until_s, stop);
  for (;;) {
    // An answer may have changed when the next question is due.
    if (now().value >= asked_s + std::min(every_s, limits->ask_after().value)) {
      sender.ask(limits->limitable());
      asked_s = now().value;
    }
    const double slice_s = std::min(until_s, now().value + kLookS);
    if (sender.run(slice_s, stop)) return true;
    if (now().value >= until_s) return false;
  }
}

// Measures period after period, of which there were `periods`, and sends meanwhile, until there were `count` of them or
// a signal comes. Gives up the turn as soon as the last period has ended.
void send_periods(const SendArguments& o, collect::Readings& readings, collect::Spool& spool, collect::Sender& sender,
                  int stop, collect::Turn* turn, daemon::LimitClient* limits, std::int64_t periods) {
  double due_s = now().value, asked_s = -std::numeric_limits<double>::infinity();
  for (;;) {
    // Periods that were missed, because the machine slept, are one long period.
    due_s = std::max(due_s + o.every_s, now().value);
    const bool last = send_until(due_s, o.every_s, sender, stop, limits, asked_s) || ++periods == o.count;
    auto batches = readings.next();
    if (last && turn != nullptr) turn->give_up();
    add_all(spool, std::move(batches));
    if (last) return;
  }
}

// Sends what waits, for some seconds. Returns whether nothing is left to do: all is sent, or the next sender, which
// waits for the spool, sends it.
bool deliver(collect::Spool& spool, collect::Sender& sender, const collect::Turn* turn) {
  const double until_s = now().value + kLastSendS;
  while (!spool.empty() && now().value < until_s) {
    const double slice_s = turn == nullptr ? until_s : std::min(until_s, now().value + kLookS);
    sender.run(slice_s, -1, collect::Sender::Until::kEmpty);
    if (turn != nullptr && turn->taken()) return true;
  }
  return spool.empty();
}

collect::SenderOptions sender_options(const SendArguments& o) {
  if (o.node && o.node->empty()) throw UsageError("--node: must not be empty");
  require_label("--node", o.node.value_or(""));
  require_label("--job", o.labels.job);
  require_label("--step", o.labels.step);
  require_label("--user", o.labels.user);
  for (const auto& [flag, label] : {std::pair("--group", &o.labels.group), std::pair("--account", &o.labels.account),
                                    std::pair("--tag", &o.labels.tag)})
    if (!label->empty() && o.labels.job.empty()) throw UsageError("{}: belongs to a job, so it needs --job", flag);
  if (o.gid && o.labels.job.empty()) throw UsageError("--gid: belongs to a job, so it needs --job");
  collect::SenderOptions options;
  options.to = collect::parse_address(o.to, "--to");
  if (o.obey_limits && !o.token_file && options.to.path.empty())
    throw UsageError(
        "--obey-limits: {} may be taken by somebody else, so the collector must prove its secret (--token-file on both "
        "sides), or listen at unix:PATH",
        options.to.text());
  options.node = o.node.value_or(this_host());
  if (o.token_file) options.token = collect::read_token(*o.token_file);
  options.say = [](const std::string& text) { say(text); };
  return options;
}

// Returns the name of this process in the file of the turn.
std::string turn_name(const SendArguments& o, const std::string& node) {
  return fmt::format("node={} pid={} job={} step={}", node, ::getpid(), collect::as_name(o.labels.job),
                     collect::as_name(o.labels.step));
}

int run_send(const SendArguments& o) {
  const Stop stop(o.until_hangup);
  collect::SenderOptions options = sender_options(o);
  std::optional<daemon::LimitClient> limits;
  if (o.obey_limits) {
    limits.emplace(daemon::socket_here(), options.say);
    options.on_limits = [&limits](const collect::LimitOrder& order) { limits->keep(order); };
  }
  std::optional<collect::Watchdog> watchdog;
  if (o.until_hangup) watchdog.emplace(stop.get(), kStopLimitS, options.say);
  collect::Labels labels = o.labels;
  if (o.uid) labels.user = name_of_number(uid_t{*o.uid}, ::getpwuid_r, &passwd::pw_name);
  if (o.gid) labels.group = name_of_number(gid_t{*o.gid}, ::getgrgid_r, &group::gr_name);
  make_job_label("group", labels.group), make_job_label("account", labels.account), make_job_label("tag", labels.tag);
  std::optional<collect::Turn> turn;
  if (o.lock) turn.emplace(*o.lock, turn_name(o, options.node));
  // They are open before the turn comes, because that may take seconds, in which nobody would measure.
  energy::OpenOptions open;
  open.daemon = daemon::open_meters_here;
  auto meters = energy::open_meters(o.meters, open);
  const auto still_waits = [&](const std::string& holder) {
    say(fmt::format("{}: waits for its turn to measure; {} has it", *o.lock, holder.empty() ? "another one" : holder));
  };
  if (turn && !turn->wait(stop.get(), kPatienceS, still_waits)) return kOk;  // another one has measured all the time
  // It measures from here on, also while the sender before still has the spool.
  collect::Readings readings(std::move(meters), labels);
  std::vector<collect::Batch> kept = readings.describe();
  std::int64_t periods = 0;
  const auto spool = open_spool(o, options, readings, stop.get(), kept, periods);
  collect::Sender sender(options, *spool);
  add_all(*spool, std::move(kept));
  send_periods(o, readings, *spool, sender, stop.get(), turn ? &*turn : nullptr, limits ? &*limits : nullptr, periods);
  add_all(*spool, readings.farewell());
  if (deliver(*spool, sender, turn ? &*turn : nullptr)) return kOk;
  say(fmt::format("{} not acknowledged; {} has what waits, and the next start sends it",
                  counted(spool->end() - spool->begin(), "batch"), o.spool));
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
  verb->add_option("--lock", o->lock,
                   "a file; of the senders that name it only one measures at a time, and the others wait for its end");
  verb->add_flag(
      "--until-hangup", o->until_hangup,
      fmt::format("end when the other end of standard input, a pipe, is closed, as it is when its holder dies; "
                  "within {:g} s, even if a meter hangs",
                  kStopLimitS));
  verb->add_flag(
      "--obey-limits", o->obey_limits,
      "ask the collector for the power limits of this node, several times a minute, and have its energy daemon keep "
      "them (molen energy manage); of one sender of a node only");
  verb->add_option("--meters", o->meters, fmt::format("{}", fmt::join(energy::meter_names(), ", ")));
  verb->add_option("--job", o->labels.job, "the job that the energy belongs to");
  verb->add_option("--step", o->labels.step, "the step of the job");
  auto* user = verb->add_option("--user", o->labels.user, "the user that the energy belongs to");
  verb->add_option("--uid", o->uid, "the number of that user instead, whose name is looked up; else the number counts")
      ->excludes(user);
  auto* group = verb->add_option("--group", o->labels.group, "the group that the job belongs to");
  verb->add_option("--gid", o->gid, "the number of that group instead, whose name is looked up; else the number counts")
      ->excludes(group);
  verb->add_option("--account", o->labels.account, "the account of the batch system that the job is booked to");
  verb->add_option("--tag", o->labels.tag, "a tag of the job");
  verb->callback([&chosen, o] { chosen.action = [=] { return run_send(*o); }; });
}

}  // namespace

void add_collect_verbs(CLI::App& energy, Chosen& chosen) {
  add_collect_verb(energy, chosen);
  add_send_verb(energy, chosen);
}

}  // namespace molen::apps
