#include "slurm/arguments.h"

#include <gtest/gtest.h>

namespace molen::slurm {
namespace {

const std::vector<std::string_view> kNeeded{"molen=/opt/molen", "collector=energy:4722", "spool=/var/spool/molen/%h"};

std::string refused_words(std::vector<std::string_view> more, bool needed = true) {
  if (needed) more.insert(more.begin(), kNeeded.begin(), kNeeded.end());
  return parse_arguments(more, "n1").wrong;
}

TEST(PluginArguments, MakeTheCommandOfAStep) {
  auto words = kNeeded;
  const auto plain_words = parse_arguments(words, "n1");
  ASSERT_EQ(plain_words.wrong, "");
  EXPECT_EQ(plain_words.value.log, "/var/spool/molen/n1/send.log");
  EXPECT_EQ(command_of_step(plain_words.value, {"77", "batch", 1001, 100}),
            (std::vector<std::string>{"/opt/molen", "energy", "send", "--to=energy:4722",
                                      "--spool=/var/spool/molen/n1/n1.spool", "--lock=/var/spool/molen/n1/n1.turn",
                                      "--until-hangup", "--every=60", "--job=77", "--step=batch", "--uid=1001",
                                      "--gid=100"}));
  EXPECT_EQ(command_of_step(plain_words.value, {"77", "batch", 1001}).back(), "--uid=1001") << "no group is known";
  for (const char* more :
       {"token=/etc/molen.token", "every=0.5", "meters=rapl,replay:/r/%h.jsonl", "log=/var/log/%h%%.log"})
    words.emplace_back(more);
  const auto all = parse_arguments(words, "n1");
  ASSERT_EQ(all.wrong, "");
  EXPECT_EQ(all.value.log, "/var/log/n1%%.log");
  const auto command = command_of_step(all.value, {"1", "0", 4294967294U, 0});
  const std::vector<std::string> end(command.end() - 8, command.end());
  EXPECT_EQ(
      end, (std::vector<std::string>{"--every=0.5", "--job=1", "--step=0", "--uid=4294967294", "--gid=0",
                                     "--token-file=/etc/molen.token", "--meters=rapl", "--meters=replay:/r/n1.jsonl"}));
}

TEST(PluginArguments, RefusalsNameTheArgument) {
  EXPECT_EQ(refused_words({}, false), "molen= is missing");
  EXPECT_EQ(refused_words({"molen=/m"}, false), "collector= is missing");
  EXPECT_EQ(refused_words({"molen=/m", "collector=c"}, false), "spool= is missing");
  EXPECT_EQ(refused_words({"molen=/m", "collector=c", "spool=s"}, false), "spool= must be an absolute path");
  EXPECT_EQ(refused_words({"molen=molen", "collector=c", "spool=/s"}, false), "molen= must be an absolute path");
  EXPECT_EQ(refused_words({"token=t"}), "token= must be an absolute path");
  EXPECT_EQ(refused_words({"log=t"}), "log= must be an absolute path");
  EXPECT_EQ(refused_words({"every"}), "'every' must be key=value");
  EXPECT_EQ(refused_words({"every="}), "every has no value");
  EXPECT_EQ(refused_words({"every=1", "every=2"}), "every= is there twice");
  EXPECT_EQ(refused_words({"evry=1"}),
            "no argument is called 'evry'; there are molen, collector, spool, token, log, every, meters");
  for (const char* every : {"every=0", "every=0.09", "every=1801", "every=x", "every=1s", "every=nan", "every=-1"})
    EXPECT_EQ(refused_words({every}), "every= must be seconds from 0.1 to 1800") << every;
  for (const char* every : {"every=0.1", "every=1800"}) EXPECT_EQ(refused_words({every}), "");
  const std::string longest = "log=/" + std::string(5000, 'x');
  EXPECT_NE(refused_words({longest}), "");
}

// Nodes may share the folder, and a host may have any name.
TEST(PluginArguments, FilesHaveTheNameOfTheHost) {
  const auto lock_of = [](const std::string& host) {
    const auto parsed = parse_arguments({"molen=/m", "collector=c", "spool=/s"}, host);
    return command_of_step(parsed.value, {"1", "0", 0})[5];
  };
  EXPECT_EQ(lock_of("n1.site"), "--lock=/s/n1.site.turn");
  EXPECT_NE(lock_of("n1"), lock_of("n2"));
  EXPECT_EQ(lock_of("../../etc/n 1\n"), "--lock=/s/_.._.._etc_n_1_.turn");
  EXPECT_EQ(lock_of(""), "--lock=/s/_.turn");
}

TEST(PluginArguments, LabelsAreNames) {
  EXPECT_EQ(step_name(0), "0");
  EXPECT_EQ(step_name(12), "12");
  EXPECT_EQ(step_name(0xfffffffb), "batch");
  EXPECT_EQ(step_name(0xfffffffc), "extern");
  EXPECT_EQ(step_name(0xfffffffa), "interactive");
}

}  // namespace
}  // namespace molen::slurm
