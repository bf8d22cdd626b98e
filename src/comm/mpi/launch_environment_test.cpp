// Tests how launchers' variables are read, in the forms of Open MPI 4 and 5, MPICH's Hydra and Slurm's srun.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <string>
#include <tuple>

#include "base/error.h"
#include "base/test_golden.h"
#include "comm/mpi/mpi.h"

namespace molen::comm {
namespace {

using Environment = std::map<std::string, std::string>;

LaunchEnvironment of(const Environment& variables) {
  return launch_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// Returns rank and size in the job, and rank and size on the host.
std::tuple<int, int, int, int> figures(const Environment& variables) {
  const LaunchEnvironment e = of(variables);
  return {e.rank, e.size, e.local_rank, e.local_size};
}

std::string refusal(const Environment& variables) {
  try {
    of(variables);
  } catch (const UsageError& error) {
    return GoldenMessages::note(error.what());
  }
  return "";
}

const Environment kOpenMpi{{"OMPI_COMM_WORLD_SIZE", "6"},
                           {"OMPI_COMM_WORLD_RANK", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};

Environment slurm(const std::string& rank, const std::string& size, const std::string& node,
                  const std::string& local_rank, const std::string& tasks) {
  return {{"SLURM_STEP_ID", "0"},        {"SLURM_PROCID", rank},        {"SLURM_NTASKS", size},
          {"SLURM_NODEID", node},        {"SLURM_LOCALID", local_rank}, {"SLURM_STEP_TASKS_PER_NODE", tasks},
          {"SLURM_NTASKS_PER_NODE", "4"}};
}

Environment with(Environment e, const std::string& name, const std::string& value) {
  e[name] = value;
  return e;
}
Environment without(Environment e, const std::string& name) {
  e.erase(name);
  return e;
}

TEST(LaunchEnvironment, NoLauncher) {
  EXPECT_EQ(of({}).size, 0);
  EXPECT_EQ(of({{"OMPI_COMM_WORLD_SIZE", ""}}).size, 0);
  // Neither a batch script's variables nor a step's variables without a rank make a step.
  EXPECT_EQ(of({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).size, 0);
  EXPECT_EQ(of({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}}).size, 0);
}

TEST(LaunchEnvironment, OpenMpi) {
  const GoldenMessages golden;
  EXPECT_EQ(figures(kOpenMpi), std::tuple(4, 6, 1, 3));
  EXPECT_EQ(of(kOpenMpi).source, "Open MPI");
  // Open MPI's variables take precedence over those of the Slurm step in which mpirun runs.
  auto both = kOpenMpi;
  both.merge(slurm("0", "2", "0", "0", "1(x2)"));
  EXPECT_EQ(figures(both), std::tuple(4, 6, 1, 3));
  EXPECT_NE(refusal(without(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE")).find("OMPI_COMM_WORLD_LOCAL_SIZE"),
            std::string::npos);
  EXPECT_EQ(figures({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}), std::tuple(0, 1, 0, 1));
}

TEST(LaunchEnvironment, Pmi) {
  const GoldenMessages golden;
  const Environment pmi{{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}};
  EXPECT_NE(refusal(pmi).find("PMI_LOCAL_SIZE"), std::string::npos);
  EXPECT_EQ(figures(with(with(pmi, "PMI_LOCAL_SIZE", "2"), "PMI_LOCAL_RANK", "1")), std::tuple(3, 4, 1, 2));
  EXPECT_EQ(figures(with(with(pmi, "MPI_LOCALNRANKS", "2"), "MPI_LOCALRANKID", "1")), std::tuple(3, 4, 1, 2));
  EXPECT_EQ(figures(with(pmi, "PMI_LOCAL_SIZE", "1")), std::tuple(3, 4, 0, 1));
  EXPECT_NE(refusal(with(pmi, "PMI_LOCAL_SIZE", "2")).find("which of the 2 ranks of this host"), std::string::npos);
  // Under srun --mpi=pmi2, Slurm's own variables give the rest.
  auto both = slurm("3", "4", "1", "0", "3,1");
  both.insert(pmi.begin(), pmi.end());
  EXPECT_EQ(figures(both), std::tuple(3, 4, 0, 1));
  EXPECT_EQ(of(both).source, "PMI");
}

TEST(LaunchEnvironment, SlurmTasksOfEachNode) {
  const GoldenMessages golden;
  EXPECT_EQ(figures(slurm("5", "8", "1", "1", "4(x2)")), std::tuple(5, 8, 1, 4));
  EXPECT_EQ(figures(slurm("0", "11", "0", "0", "4(x2),3")), std::tuple(0, 11, 0, 4));
  EXPECT_EQ(figures(slurm("10", "11", "2", "2", "4(x2),3")), std::tuple(10, 11, 2, 3));
  EXPECT_EQ(figures(slurm("4", "6", "3", "0", "2,1(x2),2")), std::tuple(4, 6, 0, 2));
  EXPECT_EQ(figures(slurm("1", "2", "0", "1", "2")), std::tuple(1, 2, 1, 2));
  EXPECT_EQ(of(slurm("1", "2", "0", "1", "2")).source, "Slurm");
  // Uses the step's tasks, not the allocation's; the allocation's only when the step's are missing.
  EXPECT_EQ(figures(with(slurm("1", "2", "0", "1", "2"), "SLURM_TASKS_PER_NODE", "64(x9)")), std::tuple(1, 2, 1, 2));
  const auto older = without(slurm("1", "2", "0", "1", "2"), "SLURM_STEP_TASKS_PER_NODE");
  EXPECT_EQ(figures(with(older, "SLURM_TASKS_PER_NODE", "2")), std::tuple(1, 2, 1, 2));
  // The number of tasks requested per node may differ from this node's number.
  EXPECT_NE(refusal(older).find("Slurm: it is unknown how many of its 2 ranks share this host"), std::string::npos)
      << refusal(older);
  EXPECT_EQ(figures({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}), std::tuple(0, 1, 0, 1));
}

TEST(LaunchEnvironment, WhatDoesNotGoTogether) {
  for (const auto& wrong :
       {slurm("5", "8", "1", "1", "4(x3)"), slurm("5", "8", "2", "1", "4(x2)"), slurm("8", "8", "1", "0", "4(x2)"),
        slurm("5", "8", "1", "4", "4(x2)"), without(slurm("5", "8", "1", "1", "4(x2)"), "SLURM_NODEID"),
        without(slurm("5", "8", "1", "1", "4(x2)"), "SLURM_LOCALID"), slurm("5", "4", "1", "0", "4,0"),
        with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "7"), with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "6")})
    EXPECT_NE(refusal(wrong), "");
}

TEST(LaunchEnvironment, MalformedTasks) {
  const GoldenMessages golden;
  for (const char* text : {"x",
                           "4(",
                           "4(x",
                           "4(x)",
                           "4(x2",
                           "4(x2))",
                           "(x2)",
                           "4(x0)",
                           "4(x-1)",
                           "-4",
                           "4,",
                           ",4",
                           "4,,4",
                           "4 (x2)",
                           "4(2)",
                           "4(x2)3",
                           "4x2",
                           "4(x2),",
                           "+4",
                           "4.0",
                           "99999999999",
                           "4(x99999999999)",
                           "1073741824(x1073741824)",
                           "1073741824,1073741824",
                           "4(x2)(x2)"}) {
    const std::string said = refusal(slurm("5", "8", "1", "1", text));
    EXPECT_NE(said.find(std::string("SLURM_STEP_TASKS_PER_NODE=\"") + text), std::string::npos) << text << ": " << said;
  }
  for (const char* text : {"x", "-1", "", " 1", "1 ", "1e3", "99999999999"}) {
    EXPECT_NE(refusal(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", text)).find("OMPI_COMM_WORLD_RANK"), std::string::npos);
    if (*text) {
      EXPECT_NE(refusal(with(slurm("0", "1", "0", "0", "1"), "SLURM_NTASKS", text)).find("SLURM_NTASKS"),
                std::string::npos);
    }
  }
}

// Any values of the variables give a job's figures or a UsageError.
RC_GTEST_PROP(LaunchEnvironmentOf, AnyText, ()) {
  const auto text = [](const char* letters) {
    return *rc::gen::container<std::string>(rc::gen::elementOf(std::string(letters)));
  };
  const std::string tasks = text("0123489(x),"), number = text("0123456789-");
  const auto e = slurm(*rc::gen::element<std::string>("0", "3", number), *rc::gen::element<std::string>("4", number),
                       *rc::gen::element<std::string>("0", "1", number), "0", tasks);
  try {
    const LaunchEnvironment got = of(e);
    RC_ASSERT(got.size == 0 || (got.rank >= 0 && got.rank < got.size && got.local_size >= 1 &&
                                got.local_size <= got.size && got.local_rank < got.local_size));
  } catch (const UsageError&) {
  }
}

// Parses any list of tasks per node that is written in Slurm's notation.
RC_GTEST_PROP(LaunchEnvironmentOf, TasksOfNodes, ()) {
  const auto counts = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 5)));
  const auto node = *rc::gen::inRange<std::size_t>(0, counts.size());
  std::string text;
  int before = 0, all = 0;
  for (std::size_t i = 0; i < counts.size();) {
    std::size_t end = i + 1;
    while (end < counts.size() && counts[end] == counts[i]) ++end;
    text += fmt::format("{}{}", i ? "," : "", counts[i]);
    if (end - i > 1) text += fmt::format("(x{})", end - i);
    i = end;
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    all += counts[i];
    if (i < node) before += counts[i];
  }
  RC_ASSERT(figures(slurm(std::to_string(before), std::to_string(all), std::to_string(node), "0", text)) ==
            std::tuple(before, all, 0, counts[node]));
}

}  // namespace
}  // namespace molen::comm
