// The manager on a database as a collector writes it.
#include "manage/manager.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "base/error.h"
#include "collect/test_database.h"
#include "collect/test_postgres.h"
#include "manage/site_records.h"

namespace molen::manage {
namespace {

constexpr double kFirstLook = 1.7e9;  // 2023-11-14T22:13:20Z

class Managing : public ::testing::Test {
 protected:
  Managing() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    use("sqlite:" + (folder_ / "site.db").string());
  }
  ~Managing() override {
    database_.reset();
    fs::remove_all(folder_);
  }
  void use(const std::string& words) {
    words_ = words;
    database_ = collect::open_database(words);
  }
  const std::string& words() const { return words_; }

  // A node sends one minute of readings that ended `ago_s` before now.
  void send(const std::string& node, double watts, double gpu_w, double ago_s = 5) {
    const double end_s = time_ - ago_s, start_s = end_s - 60;
    collect::Batch batch{node, "s", ++seq_, {}, {}};
    batch.periods.push_back(
        {"node", start_s, end_s, 60 * watts, "", "cray", energy::Source::kCounter, true, "", "", ""});
    batch.periods.push_back(
        {"gpu0", start_s, end_s, 60 * gpu_w, "", "nvml", energy::Source::kCounter, false, "", "", ""});
    ASSERT_TRUE(database_->store({&batch, 1}).ok());
  }
  // A node says what it can limit; returns what it is told.
  collect::LimitOrder ask(const std::string& node, std::optional<double> present_w = 700.0) {
    const std::vector<collect::Question> questions{{node, {{{"nvml-power:A", "gpu0", 200, 700, present_w}}, ""}}};
    auto orders = database_->answer(questions, time_);
    EXPECT_TRUE(orders.ok()) << orders.reason();
    return orders.value().at(0);
  }
  Manager manager(const std::string& caps, bool dry_run = false) {
    ManagerOptions options;
    options.database = words();
    options.caps = parse_caps(caps, "caps.toml");
    options.dry_run = dry_run;
    options.wall = [this] { return time_; };
    return Manager(std::move(options));
  }
  std::vector<std::string> events(const std::string& cap) const {
    std::vector<std::string> kinds;
    for (const auto& row : collect::database_rows(
             words(), "SELECT kind, count FROM energy_events WHERE node = 'cap:" + cap + "' ORDER BY time_s, seq"))
      kinds.push_back(row.at(0).value() + (row.at(1) == "0" ? "" : " " + row.at(1).value()));
    return kinds;
  }
  fs::path script(const std::string& text) const {
    const fs::path file = folder_ / "script";
    std::ofstream(file) << "#!/bin/sh\n" << text;
    fs::permissions(file, fs::perms(0755));
    return file;
  }
  std::string file(const std::string& name) const {
    std::ifstream in(folder_ / name);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  void expect_soft_cap();
  static std::string power_caps(const std::string& lines) {
    return "[[power_cap]]\nname = \"all\"\nnodes = [\"*\"]\nnode_most = \"2 kW\"\n" + lines;
  }
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("molen_manage_{}", ::getpid());
  std::string words_;
  double time_ = kFirstLook;
  std::int64_t seq_ = 0;
  std::unique_ptr<collect::Database> database_;
};

// Tests a soft cap on each kind of database.
void Managing::expect_soft_cap() {
  const std::string caps = power_caps("power = \"1.9 kW\"\nkind = \"soft\"\n");
  send("n1", 1000, 600);
  send("n2", 800, 250);
  EXPECT_TRUE(ask("n1").limits.empty());
  ask("n2");
  EXPECT_FALSE(manager(caps).look().power[0].decision.limiting);
  EXPECT_TRUE(events("all").empty());
  time_ += 60;
  send("n1", 1050, 650);
  send("n2", 900, 350);
  ask("n1");
  const SiteStatus over = manager(caps).look();
  EXPECT_TRUE(over.power[0].decision.limiting);
  EXPECT_NEAR(over.power[0].decision.bound_w, 1900, 1e-6);
  EXPECT_EQ(events("all"), std::vector<std::string>{"limiting"});
  const collect::LimitOrder order = ask("n1");
  EXPECT_EQ(order.seconds, 300);
  const double first_w = order.limits.at(0).watts, second_w = ask("n2").limits.at(0).watts;
  EXPECT_NEAR(first_w + second_w, 1900 - 400 - 550, 1e-6) << "the cap without what no limit bounds";
  EXPECT_GT(first_w, second_w);
  // Another manager, as after a restart, goes on.
  time_ += 60;
  send("n1", 800, first_w);
  send("n2", 800, second_w);
  ask("n1", first_w);
  ask("n2", second_w);
  const SiteStatus after = manager(caps).look();
  EXPECT_TRUE(after.power[0].decision.limiting) << "1600 W is above 80 %";
  EXPECT_TRUE(after.happened.empty());
  time_ += 60;
  send("n1", 500, 100);
  send("n2", 500, 100);
  ask("n1", first_w);
  ask("n2", second_w);
  EXPECT_FALSE(manager(caps).look().power[0].decision.limiting);
  EXPECT_EQ(events("all"), (std::vector<std::string>{"limiting", "lifted"}));
  EXPECT_TRUE(ask("n1").limits.empty()) << "told at once";
}

TEST_F(Managing, ASoftCapLimitsAndLifts) {
  expect_soft_cap();
}

// The queries have no word that only one kind of database knows.
TEST_F(Managing, OnPostgres) {
  use(collect::PrivatePostgres::shared().uri());
  expect_soft_cap();
  send("it's", 700, 300, 3600);
  const SiteStatus status = manager(power_caps("power = \"5 kW\"\nkind = \"soft\"\n") +
                                    "[[energy_cap]]\nname = \"day\"\nnodes = [\"*\"]\nnode_most = \"2 kW\"\n"
                                    "energy = \"1 kJ\"\nperiod = \"day\"\n")
                                .look();
  ASSERT_EQ(status.power[0].nodes.size(), 3u);
  EXPECT_EQ(status.power[0].nodes[0].name, "it's");
  EXPECT_EQ(status.power[0].nodes[0].how, NodeNow::How::kLastKnown);
  EXPECT_EQ(events("day"), (std::vector<std::string>{"warning 85", "warning 90", "warning 95"}));
  database_.reset();
}

TEST_F(Managing, LimitsEndWithoutAManager) {
  send("n1", 1000, 600);
  ask("n1");
  manager("[manage]\nperiod = \"10 s\"\nhold = \"2 min\"\n" + power_caps("power = \"900 W\"\nkind = \"hard\"\n"))
      .look();
  EXPECT_EQ(ask("n1").seconds, 120);
  time_ += 100;
  EXPECT_EQ(ask("n1").seconds, 20);
  time_ += 20;
  EXPECT_TRUE(ask("n1").limits.empty());
}

TEST_F(Managing, ACapThatCannotBeMetIsSaidOnce) {
  const std::string caps = power_caps("power = \"500 W\"\nkind = \"hard\"\n");
  send("n1", 1000, 600);
  ask("n1");
  const SiteStatus status = manager(caps).look();
  EXPECT_FALSE(status.met());
  EXPECT_NE(to_text(status).find("it cannot be met: the least is 600 W"), std::string::npos) << to_text(status);
  EXPECT_EQ(ask("n1").limits.at(0).watts, 200);
  time_ += 1;
  manager(caps).look();
  EXPECT_EQ(events("all"), (std::vector<std::string>{"limiting", "unmet"}));
  send("n1", 600, 350, 1);
  ask("n1");
  EXPECT_TRUE(manager(caps).look().met());
  EXPECT_EQ(events("all"), (std::vector<std::string>{"limiting", "unmet", "met"}));
}

TEST_F(Managing, NodesWithoutReadingsAreNamedAndCounted) {
  send("measured", 1000, 600);
  send("silent", 700, 300, 3600);  // an hour ago
  ask("measured");
  const std::string caps =
      "[[power_cap]]\nname = \"all\"\nnodes = [\"*\", \"never\"]\nnode_most = \"2 kW\"\npower = \"9 kW\"\nkind = "
      "\"hard\"\n";
  const SiteStatus status = manager(caps).look();
  const auto& nodes = status.power[0].nodes;
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].how, NodeNow::How::kMeasured);
  EXPECT_EQ(nodes[1].name, "never");
  EXPECT_EQ(nodes[1].how, NodeNow::How::kAssumed);
  EXPECT_EQ(nodes[1].watts(), 2000);
  EXPECT_EQ(nodes[2].how, NodeNow::How::kLastKnown);
  EXPECT_EQ(nodes[2].watts(), 700);
  EXPECT_EQ(status.power[0].decision.watts, 3700);
  const std::string text = to_text(status);
  EXPECT_NE(text.find("never  2000 W assumed; no limits: it does not ask for limits"), std::string::npos) << text;
  EXPECT_NE(text.find("silent  700 W last known at 2023-11-14T21:13:20Z"), std::string::npos) << text;
  time_ += 8 * 86400.0;
  const SiteStatus later = manager(caps).look();
  ASSERT_EQ(later.power[0].nodes.size(), 1u) << "but for the one that the file names, all are forgotten";
  EXPECT_EQ(later.power[0].nodes[0].name, "never");
}

TEST_F(Managing, AScopeWithoutAReadingCountsWithItsLastOne) {
  send("n1", 1000, 600, 65);
  collect::Batch batch{"n1", "s", ++seq_, {}, {}};
  batch.periods.push_back(
      {"node", time_ - 60, time_, std::nullopt, "no answer", "null", energy::Source::kNone, true, "", "", ""});
  ASSERT_TRUE(database_->store({&batch, 1}).ok());
  const SiteStatus status = manager(power_caps("power = \"9 kW\"\nkind = \"soft\"\n")).look();
  EXPECT_EQ(status.power[0].decision.watts, 1000);
}

// Waits until all scripts have ended; returns how.
std::vector<std::string> ends_of_scripts(Manager& manager) {
  EXPECT_TRUE(collect::eventually([&] { return !manager.tend_scripts(); }));
  return manager.take_ended();
}

// Returns whether a process is gone, or waits for its parent only.
bool has_ended(int process) {
  std::ifstream stat(fmt::format("/proc/{}/stat", process));
  std::string number, name, state;
  return !(stat >> number >> name >> state) || state == "Z";
}

TEST_F(Managing, AnEnergyCapWarnsOncePerPeriodAndRunsItsScript) {
  const fs::path program = script("env | grep ^MOLEN_ | sort >> " + (folder_ / "env").string() + "\nexit 3\n");
  // 1 kW for a minute are 60 kJ.
  const std::string caps = fmt::format(
      "[[energy_cap]]\nname = \"day\"\nnodes = [\"n*\"]\nnode_most = \"2 kW\"\nenergy = \"100 kJ\"\nperiod = \"day\"\n"
      "warn_at = [50, 100]\nscript = \"{}\"\n",
      program.string());
  send("n1", 700, 0);
  send("other", 9000, 0);
  EXPECT_TRUE(manager(caps).look().energy[0].decision.warnings.empty());
  time_ += 60;
  send("n1", 200, 0);
  Manager warning = manager(caps);
  const SiteStatus reached = warning.look();
  const auto ended = ends_of_scripts(warning);
  EXPECT_EQ(reached.energy[0].measured_j, 54e3);
  EXPECT_EQ(reached.energy[0].decision.warnings, std::vector<int>{50});
  EXPECT_EQ(events("day"), (std::vector<std::string>{"warning 50", "script 3"}));
  EXPECT_EQ(file("env"),
            "MOLEN_CAP=day\nMOLEN_CAP_ENERGY_CAP_J=100000\nMOLEN_CAP_ENERGY_J=54000\nMOLEN_CAP_EVENT=warning\n"
            "MOLEN_CAP_FROM=2023-11-14T00:00:00Z\nMOLEN_CAP_LEVEL=50\nMOLEN_CAP_PERCENT=54.00\n"
            "MOLEN_CAP_UNTIL=2023-11-15T00:00:00Z\n");
  EXPECT_NE(ended.at(0).find("for 'warning' ended with status 3"), std::string::npos) << ended[0];
  manager(caps).look();
  EXPECT_EQ(events("day").size(), 2u) << "once";
  time_ += 86400;
  send("n1", 1000, 0);
  Manager next = manager(caps);
  next.look();
  ends_of_scripts(next);
  EXPECT_EQ(events("day").size(), 4u) << "and again on the next day";
}

TEST_F(Managing, AGapIsNotZeroJoules) {
  const std::string caps =
      "[[energy_cap]]\nname = \"day\"\nnodes = [\"*\"]\nnode_most = \"2 kW\"\nenergy = \"1 GJ\"\nperiod = \"day\"\n";
  send("n1", 1000, 600, 3605);  // it was silent for an hour, without a minute
  send("n1", 2000, 600, 5);
  const SiteStatus status = manager(caps).look();
  EXPECT_NEAR(status.energy[0].measured_j, 60 * 3000.0, 1e-6);
  EXPECT_NEAR(status.energy[0].assumed_j, 3540 * 1500.0, 1e-3);
  // Periods without a reading are a gap as well.
  collect::Batch batch{"n1", "s", ++seq_, {}, {}};
  batch.periods.push_back(
      {"node", time_ - 5, time_ + 55, std::nullopt, "no answer", "null", energy::Source::kNone, true, "", "", ""});
  ASSERT_TRUE(database_->store({&batch, 1}).ok());
  time_ += 120;
  send("n1", 1500, 600, 5);
  const SiteStatus later = manager(caps).look();
  EXPECT_NEAR(later.energy[0].assumed_j, 3600 * 1500.0, 1e-3);
  EXPECT_EQ(later.energy[0].without_reading, 1);
}

TEST_F(Managing, ADryRunChangesNothing) {
  const fs::path program = script("touch " + (folder_ / "ran").string() + "\n");
  send("n1", 1000, 600);
  ask("n1");
  Manager dry =
      manager(power_caps(fmt::format("power = \"900 W\"\nkind = \"soft\"\nscript = \"{}\"\n", program.string())), true);
  const SiteStatus status = dry.look();
  EXPECT_TRUE(status.power[0].decision.limiting);
  EXPECT_NE(status.happened.at(0).find("nothing is done in a dry run"), std::string::npos);
  EXPECT_TRUE(events("all").empty());
  EXPECT_TRUE(ask("n1").limits.empty());
  EXPECT_FALSE(fs::exists(folder_ / "ran"));
}

TEST_F(Managing, TheStatusIsJson) {
  send("n1", 1000, 600);
  ask("n1");
  const Json json = to_json(manager(power_caps("power = \"950 W\"\nkind = \"hard\"\n")).look());
  const Json& cap = json["power_caps"][0];
  EXPECT_EQ(cap["name"], "all");
  EXPECT_EQ(cap["kind"], "hard");
  EXPECT_EQ(cap["watts"], 1000.0);
  EXPECT_NEAR(cap["bound_w"].get<double>(), 950, 1e-9);
  EXPECT_EQ(cap["nodes"][0]["node"], "n1");
  EXPECT_EQ(cap["nodes"][0]["how"], "measured");
  EXPECT_EQ(cap["nodes"][0]["rest_w"], 400.0);
  EXPECT_EQ(cap["nodes"][0]["limits"][0]["setting"], "nvml-power:A");
  EXPECT_NEAR(cap["nodes"][0]["limits"][0]["watts"].get<double>(), 550, 1e-9);
  EXPECT_EQ(json["happened"].size(), 1u);
}

TEST_F(Managing, ALimitThatANodeDoesNotKeepIsNamed) {
  const std::string caps = power_caps("power = \"900 W\"\nkind = \"hard\"\n");
  const auto text = [&] { return to_text(manager(caps).look()); };
  send("n1", 1000, 600);
  ask("n1", 700);
  EXPECT_EQ(text().find("were ordered last"), std::string::npos) << "nothing was";
  ask("n1", 700);
  EXPECT_NE(text().find("gpu0 has a limit of 700 W, and 500 W were ordered last"), std::string::npos) << text();
  ask("n1", 500);
  EXPECT_EQ(text().find("were ordered last"), std::string::npos) << text();
}

TEST_F(Managing, AReadingOfTheFutureDoesNotCount) {
  const std::string caps = power_caps("power = \"9 kW\"\nkind = \"soft\"\n");
  send("n1", 100, 0, -86400);  // the clock of the node was a day ahead
  const SiteStatus none = manager(caps).look();
  EXPECT_EQ(none.power[0].decision.watts, 2000) << "it has no reading that counts";
  send("n1", 1000, 600);
  const SiteStatus status = manager(caps).look();
  EXPECT_EQ(status.power[0].decision.watts, 1000);
  EXPECT_EQ(status.power[0].nodes[0].how, NodeNow::How::kMeasured);
  EXPECT_NE(to_text(status).find("it has readings until 2023-11-15T22:13:20Z, which is still to come: set its clock"),
            std::string::npos)
      << to_text(status);
  time_ += 3600;
  const SiteStatus late = manager(caps).look();
  EXPECT_EQ(late.power[0].nodes[0].how, NodeNow::How::kLastKnown);
  EXPECT_EQ(late.power[0].decision.watts, 1000) << "also not as the last one that is known";
}

TEST_F(Managing, ARowThatCannotBeReadIsTheReasonOfItsNode) {
  send("n1", 1000, 600);
  ask("n1");
  send("n2", 1000, 600);
  ask("n2");
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ / "site.db").c_str(), &other), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(other, "UPDATE energy_limitable SET limitable = '{\"settings\":[1]}' WHERE node = 'n2'",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  EXPECT_EQ(sqlite3_close(other), SQLITE_OK);
  const SiteStatus status = manager(power_caps("power = \"1.9 kW\"\nkind = \"hard\"\n")).look();
  EXPECT_NE(status.power[0].nodes.at(1).without.find("energy_limitable of n2"), std::string::npos)
      << status.power[0].nodes[1].without;
  EXPECT_EQ(status.power[0].nodes[1].watts(), 1000);
  EXPECT_EQ(ask("n1").limits.at(0).watts, 500) << "the others have their limits";
}

TEST_F(Managing, ADatabaseOfSomethingElseIsRefused) {
  ManagerOptions options;
  options.database = "sqlite:" + (folder_ / "none.db").string();
  options.caps = parse_caps(power_caps("power = \"1 kW\"\nkind = \"soft\"\n"), "caps.toml");
  options.dry_run = true;
  options.wall = [this] { return time_; };
  Manager none(options);
  EXPECT_THROW(none.look(), Error);
  EXPECT_FALSE(fs::exists(folder_ / "none.db"));
}

TEST_F(Managing, ASlowScriptDoesNotHoldUpTheLooks) {
  const fs::path program = script("echo $$ >> " + (folder_ / "ran").string() + "\necho $MOLEN_CAP_EVENT >> " +
                                  (folder_ / "kinds").string() + "\nexec sleep 600\n");
  Manager slow = manager("[manage]\nperiod = \"10 s\"\nhold = \"2 min\"\n" +
                         power_caps(fmt::format("power = \"500 W\"\nkind = \"hard\"\nscript = \"{}\"\n"
                                                "script_limit = \"10 min\"\n",
                                                program.string())));
  send("n1", 1000, 600);
  ask("n1");
  const Seconds begin = now();
  slow.look();
  time_ += 100;
  send("n1", 1000, 600);
  slow.look();
  EXPECT_LT(now() - begin, Seconds(60));
  EXPECT_EQ(ask("n1").seconds, 120) << "renewed";
  ASSERT_TRUE(collect::eventually([&] { return !file("ran").empty(); }));
  EXPECT_TRUE(slow.tend_scripts());
  EXPECT_EQ(file("kinds"), "limiting\n") << "the next one of the same cap waits";
  const int process = std::stoi(file("ran"));
  slow.end_scripts();
  EXPECT_TRUE(collect::eventually([&] { return has_ended(process); }));
  EXPECT_FALSE(slow.tend_scripts());
  EXPECT_EQ(events("all"), (std::vector<std::string>{"limiting", "unmet", "script 127", "script 127"}));
  const auto ended = slow.take_ended();
  EXPECT_TRUE(ended.at(0).ends_with("for 'limiting' was killed at the end of the manager")) << ended[0];
  EXPECT_TRUE(ended.at(1).ends_with("for 'unmet' was not run: the manager ends")) << ended[1];
}

TEST_F(Managing, ScriptsOfACapRunInTheOrderOfItsEvents) {
  const fs::path program = script("sleep 0.2\necho $MOLEN_CAP_EVENT >> " + (folder_ / "kinds").string() + "\n");
  Manager both =
      manager(power_caps(fmt::format("power = \"500 W\"\nkind = \"hard\"\nscript = \"{}\"\n", program.string())));
  send("n1", 1000, 600);
  ask("n1");
  both.look();
  EXPECT_EQ(ends_of_scripts(both).size(), 2u);
  EXPECT_EQ(file("kinds"), "limiting\nunmet\n");
}

// Runs a script to its end.
ScriptResult run_script(const Script& script, const ScriptVariables& variables) {
  RunningScript running(script, variables);
  std::optional<ScriptResult> result;
  EXPECT_TRUE(collect::eventually([&] { return (result = running.look()).has_value(); }));
  return result.value_or(ScriptResult{-1, "still runs"});
}

TEST(CapScript, HasATimeLimitAndNoShell) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("molen_script_{}", ::getpid());
  fs::create_directories(folder);
  const auto program = [&](const std::string& text) {
    const fs::path file = folder / "script";
    std::ofstream(file) << text;
    fs::permissions(file, fs::perms(0755));
    return file;
  };
  const Seconds begin = now();
  // A child in the background is killed too.
  ScriptResult result = run_script(
      {program("#!/bin/sh\nsleep 60 &\necho $! > " + (folder / "child").string() + "\nsleep 60\n"), Seconds(0.5)}, {});
  EXPECT_EQ(result.text, "was killed after 0.5 s");
  EXPECT_EQ(result.status, 137);
  EXPECT_LT(now() - begin, Seconds(20));
  int child = 0;
  std::ifstream(folder / "child") >> child;
  ASSERT_GT(child, 0);
  EXPECT_TRUE(collect::eventually([&] { return has_ended(child); }));
  // A value that a shell would run is a value.
  const std::string value = "$(touch " + (folder / "injected").string() + "); touch " + (folder / "injected").string();
  result =
      run_script({program("#!/bin/sh\nprintf %s \"$MOLEN_CAP\" > " + (folder / "value").string() + "\n"), Seconds(20)},
                 {{"MOLEN_CAP", value}});
  EXPECT_TRUE(result.ok()) << result.text;
  std::ifstream in(folder / "value");
  std::string got;
  std::getline(in, got);
  EXPECT_EQ(got, value);
  EXPECT_FALSE(fs::exists(folder / "injected"));
  result = run_script({program("#!/no/interpreter\n"), Seconds(20)}, {});
  EXPECT_EQ(result.status, 127);
  EXPECT_NE(result.text.find("could not be started"), std::string::npos) << result.text;
  result = run_script({program("#!/bin/sh\nkill -TERM $$\n"), Seconds(20)}, {});
  EXPECT_EQ(result.text, "was ended by signal 15");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace molen::manage
