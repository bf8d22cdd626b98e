#include "plan/trial_launcher.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>

#include "base/error.h"

namespace molen::plan {
namespace {

using Words = std::vector<std::string>;

std::string refused_launch(const std::string& line) {
  try {
    Launcher{line};
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Launcher, FillsItsPlaces) {
  const Launcher l(
      "srun -N {nodes} -n {ranks} --relative={first_node} -o '{run} of {config}.log' sh -c 'a ${ONE} {} {B}'");
  const LaunchPlaces places{.ranks = 8, .nodes = 2, .first_node = 0, .config = "/a/{nodes}.toml", .run = "/a/run"};
  EXPECT_EQ(l.words(places), (Words{"srun", "-N", "2", "-n", "8", "--relative=0", "-o", "/a/run of /a/{nodes}.toml.log",
                                    "sh", "-c", "a ${ONE} {} {B}"}))
      << "what is filled in is not filled again, and other braces stay";
  EXPECT_EQ(Launcher("x {ranks}{ranks}").words({.ranks = 3, .config = {}, .run = {}}), (Words{"x", "33"}));
  for (const char* place : {"nodes", "ranks", "first_node", "run", "config"}) EXPECT_TRUE(l.has(place)) << place;
  EXPECT_FALSE(l.has("{nodes}"));
  EXPECT_FALSE(Launcher("srun -N {nodes}").has("ranks"));
}

TEST(Launcher, RefusesWhatItCannotFill) {
  EXPECT_NE(refused_launch("srun -N {node}").find("--launch: there is no place {node}; there are {ranks}, {nodes},"),
            std::string::npos)
      << refused_launch("srun -N {node}");
  EXPECT_NE(refused_launch("srun -N {node}").find("did you mean 'nodes'"), std::string::npos);
  EXPECT_NE(refused_launch("srun {x}{ranks}").find("{x}"), std::string::npos);
  EXPECT_NE(refused_launch("srun 'x").find("a quote does not end"), std::string::npos);
  EXPECT_NE(refused_launch("  ").find("there is no command"), std::string::npos);
  EXPECT_THROW(Launcher("srun -N {nodes}").words({}), Error) << "no number is made up";
}

TEST(AllocatedNodes, AreThoseOfTheSlurmJob) {
  std::map<std::string, std::string> variables;
  const ReadEnvironment read = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  EXPECT_FALSE(allocated_nodes(read));
  variables["SLURM_JOB_NUM_NODES"] = "12";
  EXPECT_EQ(allocated_nodes(read), 12);
  for (const char* text : {"", "0", "-1", "2x", "99999999999"}) {
    variables["SLURM_JOB_NUM_NODES"] = text;
    EXPECT_THROW(allocated_nodes(read), UsageError) << text;
  }
}

TEST(NodePool, GivesNeighboursThatNobodyHas) {
  NodePool pool(4);
  EXPECT_EQ(pool.take(4).first(), 0);  // nodes that were given back are free again
  const auto first = pool.take(1);
  EXPECT_EQ(first.first(), 0);
  std::unique_ptr<NodePool::Taken> middle(new NodePool::Taken(pool.take(2)));
  EXPECT_EQ(middle->first(), 1);
  const auto last = pool.take(1);
  EXPECT_EQ(last.first(), 3);
  // Two neighbours are free only when the middle ones are given back.
  std::future<int> waiting = std::async(std::launch::async, [&] { return pool.take(2).first(); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  middle.reset();
  EXPECT_EQ(waiting.get(), 1);
  EXPECT_THROW(pool.take(5), Error);
  EXPECT_THROW(pool.take(0), Error);
}

}  // namespace
}  // namespace molen::plan
