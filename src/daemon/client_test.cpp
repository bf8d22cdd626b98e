// Tests the job's side of the daemon: meters, settings, and the end of the daemon.
#include "daemon/client.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "actuate/nvml.h"
#include "actuate/open.h"
#include "collect/address.h"
#include "daemon/test_daemon.h"

namespace molen::daemon {
namespace {

class Job : public DaemonTest {
 protected:
  actuate::Actuators settings() {
    actuate::Actuators here;
    here.unavailable = {{"cpufreq", "cpu-package0", "only root may write it"}, {"uncore", "cpu-package", "none"}};
    add_settings(here, socket(), no_nvml());
    return here;
  }
  static energy::NvmlOptions no_nvml() {
    energy::NvmlOptions none;
    none.library = "libno-such-library.so.1";
    return none;
  }
  actuate::SessionOptions session() {
    return {tree_.root() / "own", {MOLEN_GUARDIAN, tree_.root().string()}, [](const auto&) {}, Seconds(20)};
  }
};

TEST_F(Job, FindsTheSocketOfThisProcess) {
  ::setenv("MOLEN_ENERGY_SOCKET", "/some/where", 1);
  EXPECT_EQ(socket_here(), fs::path("/some/where"));
  const auto meters = open_meters_here();
  EXPECT_TRUE(meters.meters.empty());
  EXPECT_EQ(meters.unavailable.at(0).reason, "the energy daemon at unix:/some/where: No such file or directory");
  ::setenv("MOLEN_ENERGY_SOCKET", "", 1);
  EXPECT_EQ(socket_here(), std::nullopt);
  EXPECT_TRUE(open_meters_here().unavailable.empty()) << "nothing is asked";
  ::unsetenv("MOLEN_ENERGY_SOCKET");
  EXPECT_EQ(socket_here().has_value(), fs::exists(kDefaultSocket));
  EXPECT_NE(Client::connect(std::string(200, 'x')).reason().find("at most 107 bytes"), std::string::npos);
}

TEST_F(Job, HoldsSettingsOfTheDaemon) {
  start();
  actuate::Actuators here = settings();
  ASSERT_EQ(here.actuators.size(), 2u);
  const actuate::Actuator& first = *here.actuators[0];
  EXPECT_EQ(first.info().through, fmt::format("daemon at {}", socket().string()));
  EXPECT_EQ(first.least(), 800000);
  EXPECT_EQ(first.most(), 3000000);
  EXPECT_EQ(first.present().value(), 3000000);
  EXPECT_EQ(here.unavailable.size(), 1u) << "what the daemon sets is not unavailable";
  EXPECT_NE(actuate::list_text(here).find(fmt::format("; through the daemon at {})\n", socket().string())),
            std::string::npos);
  EXPECT_EQ(actuate::list_json(here)["available"][0]["through"], first.info().through);
  auto held = hold(std::move(here), {kPackage0}, session());
  ASSERT_TRUE(held.ok()) << held.reason();
  EXPECT_EQ(held.value()->size(), 1u);
  EXPECT_TRUE(held.value()->set(0, 1500000).ok());
  EXPECT_EQ(tree_.clocks(), kFirstSet);
  EXPECT_EQ(held.value()->actuator(0).present().value(), 1500000);
  EXPECT_NE(held.value()->set(0, 100000).reason().find("is outside what can be set"), std::string::npos);
  EXPECT_TRUE(held.value()->keep_guarded().ok());
  const auto second = hold(settings(), {kPackage0}, session());
  EXPECT_NE(second.reason().find("cannot be set: process "), std::string::npos) << second.reason();
  EXPECT_EQ(held.value()->end().restored, 2);
  EXPECT_EQ(tree_.clocks(), kAsFound);
  EXPECT_FALSE(held.value()->set(0, 1500000).ok());
}

TEST_F(Job, TwoThatListedAtOnceExcludeEachOther) {
  start();
  actuate::Actuators one = settings(), two = settings();
  const auto held = hold(std::move(one), {kPackage0, kPackage1}, session());
  ASSERT_TRUE(held.ok()) << held.reason();
  EXPECT_NE(hold(std::move(two), {kPackage1}, session()).reason().find("and only one job may"), std::string::npos);
}

TEST_F(Job, ItsOwnSettingsStayItsOwn) {
  start();
  actuate::Actuators here = actuate::open_cpufreq(tree_.machine);
  add_settings(here, socket(), no_nvml());
  EXPECT_EQ(here.actuators.size(), 2u);
  EXPECT_EQ(here.actuators[0]->info().through, "");
  // One package of its own, and one through the daemon.
  here.actuators.erase(here.actuators.begin());
  add_settings(here, socket(), no_nvml());
  ASSERT_EQ(here.actuators.size(), 2u);
  EXPECT_NE(here.actuators[0]->info().through, "");
  const auto held = hold(std::move(here), {kPackage0, kPackage1}, session());
  ASSERT_TRUE(held.ok()) << held.reason();
  ASSERT_EQ(held.value()->size(), 2u);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(held.value()->set(i, 1500000 + 100000 * static_cast<std::int64_t>(i)).ok());
  EXPECT_EQ(held.value()->actuator(0).info().id, kPackage1);
  EXPECT_EQ(tree_.clocks(), (State{1600000, 1600000, 1500000, 1500000}));
  EXPECT_TRUE(held.value()->keep_guarded().ok());
  EXPECT_EQ(held.value()->end().restored, 4);
  EXPECT_EQ(tree_.clocks(), kAsFound);
}

TEST_F(Job, LearnsOfTheEndOfTheDaemon) {
  const pid_t daemon = start();
  auto held = hold(settings(), {kPackage0}, session());
  ASSERT_TRUE(held.ok()) << held.reason();
  ASSERT_TRUE(held.value()->set(0, 1500000).ok());
  finish(daemon, SIGKILL);
  EXPECT_EQ(held.value()->keep_guarded().reason(),
            fmt::format("the energy daemon at {}: it is gone", socket().string()));
  EXPECT_FALSE(held.value()->set(0, 2000000).ok());
  const auto end = held.value()->end();
  EXPECT_EQ(end.notes.at(0),
            fmt::format("the energy daemon at {}: it is gone; what it had set is restored by it or by its guardian",
                        socket().string()));
  EXPECT_TRUE(held.value()->end().notes.empty()) << "it is asked once";
  EXPECT_TRUE(soon([&] { return tree_.clocks() == kAsFound; }));
  EXPECT_EQ(settings().unavailable.back().meter, "daemon") << "it is named";
}

TEST_F(Job, ReadsMetersThroughTheDaemon) {
  ServerOptions o = options();
  o.read_every = Seconds(0.001);
  pid_t daemon = start(o);
  energy::Meters meters = open_meters(socket());
  ASSERT_EQ(meters.meters.size(), 1u);
  const energy::MeterInfo& info = meters.meters[0]->info();
  EXPECT_EQ(info.name, "daemon");
  EXPECT_EQ(info.scope, "cpu-package0");
  EXPECT_EQ(info.source, energy::Source::kCounter);
  EXPECT_EQ(info.detail, fmt::format("counting at {}: each reading", socket().string()));
  EXPECT_EQ(info.joules_per_tick, 1.0);
  const auto read = [&] { return meters.meters[0]->read(); };
  EXPECT_EQ(read().value().total.value, 0.0) << "since the opening";
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto more = read().value();
  EXPECT_GT(more.total.value, 0.0);
  EXPECT_EQ(more.total.value, static_cast<double>(more.ticks));
  EXPECT_EQ(more.gaps, 0);
  finish(daemon, SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(read().reason(), fmt::format("the energy daemon at {}: it is gone", socket().string()));
  EXPECT_FALSE(read().ok()) << "and it is not asked all the time";
  start(o);
  Result<energy::Reading> again = Failure{"none"};
  EXPECT_TRUE(soon([&] { return (again = read()).ok(); })) << again.reason();
  EXPECT_EQ(again.value().gaps, 1) << "the energy in between is unknown";
  EXPECT_EQ(again.value().total.value, more.total.value);
}

TEST_F(Job, IsNotHeldUpByADaemonThatHangs) {
  ServerOptions o = options();
  o.read_every = Seconds(0.001);
  pid_t daemon = start(o);
  energy::Meters meters = open_meters(socket());
  ASSERT_EQ(meters.meters.size(), 1u);
  const auto read = [&] { return meters.meters[0]->read(); };
  const auto failures = [&] {
    const Seconds began = now();
    std::string why;
    for (int i = 0; i < 50; ++i) {
      const auto reading = read();
      EXPECT_FALSE(reading.ok()) << i;
      why = reading.reason();
    }
    EXPECT_LT((now() - began).value, 2.0) << "one of them waits, and the others do not";
    return why;
  };
  const auto reads_again = [&](std::int64_t gaps) {
    Result<energy::Reading> again = Failure{"none"};
    EXPECT_TRUE(soon([&] { return (again = read()).ok(); })) << again.reason();
    if (again) EXPECT_EQ(again.value().gaps, gaps);
  };
  ASSERT_TRUE(read().ok());
  ASSERT_EQ(::kill(daemon, SIGSTOP), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_NE(failures().find("has not answered for 0."), std::string::npos);
  ASSERT_EQ(::kill(daemon, SIGCONT), 0);
  reads_again(0);
  finish(daemon, SIGKILL);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(read().ok());
  daemon = start(o);
  ASSERT_EQ(::kill(daemon, SIGSTOP), 0);
  EXPECT_NE(failures().find("no answer in time"), std::string::npos) << "it hangs before its welcome";
  ASSERT_EQ(::kill(daemon, SIGCONT), 0);
  reads_again(1);
}

// A daemon with one meter, in a thread, that counts the requests for readings.
class CountedDaemon {
 public:
  explicit CountedDaemon(const fs::path& socket) : listening_(collect::listen_at({"", 0, socket.string()}).socket) {
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  std::atomic<int> reads = 0;

 private:
  static bool readable(int fd, const std::stop_token& stop) {
    for (pollfd polled{fd, POLLIN, 0}; !stop.stop_requested();)
      if (::poll(&polled, 1, 20) > 0) return true;
    return false;
  }
  void serve(const std::stop_token& stop) {
    if (!readable(listening_.get(), stop)) return;
    const Descriptor peer(::accept(listening_.get(), nullptr, nullptr));
    collect::LineBuffer lines(kMostRequestBytes);
    Answer answer;
    do {
      const std::string text = answer_line(answer);
      (void)!::send(peer.get(), text.data(), text.size(), MSG_NOSIGNAL);
      auto line = lines.next();
      for (char bytes[4096]; !line; line = lines.next()) {
        const ssize_t got = readable(peer.get(), stop) ? ::recv(peer.get(), bytes, sizeof bytes, 0) : 0;
        if (got <= 0) return;
        lines.append({bytes, static_cast<std::size_t>(got)});
      }
      answer = Answer{};
      answer.kind = Answer::Kind::kListing;
      answer.listing.meters = {{"cpu-package0", "rapl", "", energy::Source::kCounter, 1.0, 0.1}};
      if (parse_request(*line, "test").kind != Request::Kind::kRead) continue;
      answer.kind = Answer::Kind::kReadings;
      answer.readings = {{"cpu-package0", energy::Reading{Joules(1.0 * ++reads), 0, reads.load()}, ""}};
    } while (true);
  }
  Descriptor listening_;
  std::jthread thread_;
};

TEST_F(Job, ThatReadsOftenAsksNoOftenerThanTheReadingsChange) {
  CountedDaemon daemon(socket());
  const energy::Meters meters = open_meters(socket());
  ASSERT_EQ(meters.meters.size(), 1u);
  const Seconds began = now();
  double oldest_s = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto reading = meters.meters[0]->read();
    ASSERT_TRUE(reading.ok()) << reading.reason();
    oldest_s = std::max(oldest_s, reading.value().age_s);
    std::this_thread::sleep_until(std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
  }
  const double took_s = (now() - began).value;
  EXPECT_LE(daemon.reads, 1 + static_cast<int>(took_s / 0.1));
  EXPECT_GE(daemon.reads, 5);
  EXPECT_GT(oldest_s, 0.08) << "a repeated reading gets older";
}

// A lease ends with its connection, so a job that has given the daemon up must let it see the end at once. Whatever
// call failed before, the wait has an end too.
TEST_F(Job, ThatGivesTheDaemonUpEndsTheConnection) {
  const Descriptor listening(collect::listen_at({"", 0, socket().string()}).socket);
  std::atomic<bool> ended = false;
  const std::jthread silent([&] {
    const auto readable = [](int fd) {
      pollfd polled{fd, POLLIN, 0};
      return ::poll(&polled, 1, 30'000) > 0;
    };
    if (!readable(listening.get())) return;
    const Descriptor peer(::accept(listening.get(), nullptr, nullptr));
    const std::string welcome = answer_line(Answer{});
    (void)!::send(peer.get(), welcome.data(), welcome.size(), MSG_NOSIGNAL);
    char bytes[4096];
    while (readable(peer.get()))
      if (::recv(peer.get(), bytes, sizeof bytes, 0) <= 0) {
        ended = true;
        return;
      }
  });
  const auto connected = client();
  ASSERT_NE(connected, nullptr);
  errno = EINTR;  // as a signal leaves it that came in another call
  const auto answer = connected->ask({Request::Kind::kRead}, Answer::Kind::kReadings, Seconds(0.2));
  EXPECT_EQ(answer.reason(), fmt::format("the energy daemon at {}: no answer in time", socket().string()));
  EXPECT_TRUE(soon([&] { return ended.load(); })) << "the daemon still waits for requests";
}

TEST_F(Job, OfAnotherUserIsNoDaemon) {
  if (!may_become_another_user()) GTEST_SKIP() << "only root becomes another user";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  fs::permissions(tree_.root(), fs::perms(0777));
  const pid_t impostor = ::fork();
  if (impostor == 0) {
    if (::setgid(kNobody) == 0 && ::setuid(kNobody) == 0) {
      const auto listening = collect::listen_at({"", 0, socket().string()});
      (void)!::write(ready[1], listening.socket >= 0 ? "y" : "n", 1);
      ::pause();
    }
    std::_Exit(0);
  }
  char ok = 0;
  ASSERT_EQ(::read(ready[0], &ok, 1), 1);
  EXPECT_EQ(
      Client::connect(socket()).reason(),
      fmt::format("the energy daemon at {}: user 65534 listens there, who is neither root nor you", socket().string()));
  kill_job(impostor);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(Job, SeesTheGpusThatItsEnvironmentShows) {
  for (const char* bus : {"10", "11"})
    tree_.write(fmt::format("sys/bus/pci/devices/0000:{}:00.0/uevent", bus), "DRIVER=nvidia\n");
  void* const library = ::dlopen(MOLEN_FAKE_NVML, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  reinterpret_cast<void (*)(unsigned, int)>(::dlsym(library, "fake_nvml_reset"))(2, 0);
  ServerOptions o = options();
  energy::NvmlOptions nvml;
  nvml.library = MOLEN_FAKE_NVML;
  o.leases.open = [this, nvml] { return actuate::open_nvml_settings(tree_.machine, nvml); };
  start(o);
  const auto listed = [&](const char* visible) {
    energy::NvmlOptions of_job = nvml;
    if (visible != nullptr) of_job.visible = visible;
    actuate::Actuators here;
    here.unavailable = {{"nvml", "gpu0", "CAP_SYS_ADMIN"}};
    add_settings(here, socket(), of_job);
    std::vector<std::string> words;
    for (const auto& a : here.actuators) words.push_back(a->info().scope + " " + a->info().id);
    EXPECT_EQ(here.unavailable.empty(), !here.actuators.empty());
    return words;
  };
  EXPECT_EQ(listed("1"), (std::vector<std::string>{"gpu0 nvml-clock:GPU-b0000000", "gpu0 nvml-power:GPU-b0000000"}));
  EXPECT_EQ(listed(nullptr).size(), 4u);
  EXPECT_TRUE(listed("-1").empty());
  ::dlclose(library);
}

}  // namespace
}  // namespace molen::daemon
