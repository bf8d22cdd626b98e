#include "base/available_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "base/error.h"

namespace molen {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr const char* kMeminfo = "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n";  // 8 MiB
constexpr const char* kMount2 = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
constexpr const char* kMounts1 =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

// A tree of files in place of /proc and /sys.
class Tree : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / fmt::format("molen_available_memory_test_{}", ::getpid());
    fs::remove_all(root_);
    put("proc/meminfo", kMeminfo);
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    write_file_atomic(root_ / path, text);
  }
  void in_group(const std::string& lines, const std::string& mounts) {
    put("proc/self/cgroup", lines);
    put("proc/self/mountinfo", "23 1 0:2 / / rw - ext4 /dev/vda rw\n" + mounts);
  }
  void limit2(const std::string& group, const std::string& limit, std::int64_t used, const std::string& stat = "") {
    put(group + "/memory.max", limit + "\n");
    put(group + "/memory.current", std::to_string(used) + "\n");
    put(group + "/memory.stat", stat);
  }
  void limit1(const std::string& group, std::int64_t limit, std::int64_t used, const std::string& stat = "") {
    put(group + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    put(group + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    put(group + "/memory.stat", stat);
  }
  void expect(std::int64_t mib, const std::string& source) {
    const AvailableMemory got = available_memory(root_);
    EXPECT_EQ(got.bytes.value, mib * kMiB);
    EXPECT_EQ(got.source, (root_ / source).string());
  }
  fs::path root_;
};

TEST_F(Tree, TheHostAlone) {
  expect(8, "proc/meminfo");
  in_group("0::/\n", kMount2);  // the outermost group has no limits
  expect(8, "proc/meminfo");
}

TEST_F(Tree, TheGroupOfVersion2) {
  in_group("0::/job/step\n", kMount2);
  limit2("sys/fs/cgroup/job/step", std::to_string(6 * kMiB), 2 * kMiB);
  expect(4, "sys/fs/cgroup/job/step/memory.max");
  limit2("sys/fs/cgroup/job/step", "max", 2 * kMiB);
  expect(8, "proc/meminfo");
  put("sys/fs/cgroup/job/step/memory.high", std::to_string(3 * kMiB));
  expect(1, "sys/fs/cgroup/job/step/memory.high");
  put("sys/fs/cgroup/job/step/memory.high", std::to_string(1 * kMiB));  // usage above the limit
  expect(0, "sys/fs/cgroup/job/step/memory.high");
  limit2("sys/fs/cgroup/job/step", std::to_string(100 * kMiB), 2 * kMiB);
  put("sys/fs/cgroup/job/step/memory.high", "max\n");
  expect(8, "proc/meminfo");
}

TEST_F(Tree, AGroupFurtherOutLimitsToo) {
  in_group("0::/job/step/task\n", kMount2);
  limit2("sys/fs/cgroup/job/step/task", "max", 0);
  limit2("sys/fs/cgroup/job/step", std::to_string(7 * kMiB), 0);
  limit2("sys/fs/cgroup/job", std::to_string(5 * kMiB), 2 * kMiB);
  limit2("sys/fs/cgroup/another", std::to_string(kMiB), 0);
  expect(3, "sys/fs/cgroup/job/memory.max");
}

TEST_F(Tree, CachesOfFilesAreFree) {
  in_group("0::/job\n", kMount2);
  limit2("sys/fs/cgroup/job", std::to_string(4 * kMiB), 4 * kMiB,
         fmt::format("anon {}\nfile {}\nactive_file {}\ninactive_file {}\nslab_reclaimable {}\nshmem {}\n", kMiB,
                     3 * kMiB, kMiB / 2, kMiB, kMiB / 2, 3 * kMiB));
  expect(2, "sys/fs/cgroup/job/memory.max");
  in_group("4:memory:/job\n", kMounts1);
  limit1("sys/fs/cgroup/memory/job", 4 * kMiB, 4 * kMiB,
         fmt::format("active_file {}\ntotal_active_file {}\ntotal_inactive_file {}\n", kMiB, kMiB, 2 * kMiB));
  expect(3, "sys/fs/cgroup/memory/job/memory.limit_in_bytes");
}

TEST_F(Tree, TheGroupOfVersion1BesideVersion2) {
  in_group("9:name=systemd:/x\n4:cpu,memory:/slurm/job_7\n1:cpu:/\n0::/\n",
           std::string(kMounts1) + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  limit1("sys/fs/cgroup/memory/slurm/job_7", std::int64_t{9223372036854771712}, 3 * kMiB);  // none
  expect(8, "proc/meminfo");
  limit1("sys/fs/cgroup/memory/slurm", 6 * kMiB, kMiB);
  expect(5, "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes");
}

TEST_F(Tree, GroupsThatAreNotTheProcessesDoNotCount) {
  limit1("sys/fs/cgroup/memory", kMiB, 0);
  limit1("sys/fs/cgroup/memory/job", kMiB, 0);
  // Incomplete lines, lines of another controller, lines of the other version.
  for (const char* lines : {"", "memory", "4:memory", "4:cpu:/job\n", "0::/job\n"}) {
    in_group(lines, kMounts1);
    expect(8, "proc/meminfo");
  }
  in_group("memory\n7:memory\n4:memory:/job\n5:memory:/other\n", kMounts1);
  expect(1, "sys/fs/cgroup/memory/memory.limit_in_bytes");
  limit1("sys/fs/cgroup/memory", 8 * kMiB, 0);
  expect(1, "sys/fs/cgroup/memory/job/memory.limit_in_bytes");
  limit2("sys/fs/cgroup", std::to_string(kMiB), 0);
  in_group("4:memory:/job\n", kMount2);
  expect(8, "proc/meminfo");
  // Incomplete mounts, or mounts of other types.
  limit2("sys/fs/cgroup/job", std::to_string(kMiB), 0);
  limit1("sys/fs/cgroup", kMiB, 0);
  limit1("sys/fs/cgroup/job", kMiB, 0);
  for (const char* mounts : {"41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2\n", "41 / /sys/fs/cgroup\n",
                             "41 31 0:38 / /sys/fs/cgroup rw - tmpfs tmpfs rw,memory\n",
                             "41 31 0:38 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu\n"}) {
    in_group("0::/job\n4:memory:/job\n", mounts);
    expect(8, "proc/meminfo");
  }
  in_group("0::/job\n", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  expect(1, "sys/fs/cgroup/memory.max");
}

// A container may see only its own group, under the path by which the host knows it.
TEST_F(Tree, AMountedGroup) {
  in_group("4:memory:/docker/abc/inner\n", "35 31 0:32 /docker/abc /a\\040b rw - cgroup cgroup rw,memory\n");
  limit1("a b", 5 * kMiB, kMiB);
  expect(4, "a b/memory.limit_in_bytes");
  limit1("a b/inner", 2 * kMiB, kMiB);
  expect(1, "a b/inner/memory.limit_in_bytes");
  in_group("4:memory:/docker/other\n", "35 31 0:32 /docker/abc /a\\040b rw - cgroup cgroup rw,memory\n");
  expect(8, "proc/meminfo");
}

// Every octal escape of mountinfo; a backslash that begins no escape is literal.
TEST_F(Tree, NamesOfMountsAreUnescaped) {
  for (const auto& [written, name] : {std::pair{"/tab\\011b", "tab\tb"},
                                      {"/end\\012", "end\n"},
                                      {"/back\\134slash", "back\\slash"},
                                      {"/not\\48b", "not\\48b"},
                                      {"/\\058", "\\058"},
                                      {"/short\\04", "short\\04"},
                                      {"/low\\377", "low\377"}}) {
    in_group("4:memory:/docker/abc\n",
             fmt::format("35 31 0:32 /docker/abc {} rw - cgroup cgroup rw,memory\n", written));
    limit1(name, 5 * kMiB, kMiB);
    expect(4, fmt::format("{}/memory.limit_in_bytes", name));
  }
}

TEST_F(Tree, RefusesWhatTheKernelDoesNotWrite) {
  in_group("0::/job\n", kMount2);
  for (const char* wrong : {"", "12x", "-1", "maximum", "1 2", "99999999999999999999"}) {
    limit2("sys/fs/cgroup/job", wrong, 0);
    try {
      available_memory(root_);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), fmt::format("{}: '{}' is no number of bytes",
                                          (root_ / "sys/fs/cgroup/job/memory.max").string(), wrong));
    }
  }
  fs::remove(root_ / "sys/fs/cgroup/job/memory.max");
  for (const char* wrong : {"", "MemFree: 3 kB\n", "MemAvailable:", "MemAvailable: x kB\n"}) {
    put("proc/meminfo", wrong);
    EXPECT_THROW(available_memory(root_), Error) << wrong;
  }
}

// This host's own files, whose values a test cannot choose.
TEST(AvailableMemory, OfThisHost) {
  EXPECT_GT(available_memory().bytes.value, 0);
}

TEST(PeakResident, RisesWithWhatIsTouchedAndStays) {
  const std::int64_t before = peak_resident().value;
  constexpr std::size_t kBytes = std::size_t{96} << 20;
  {
    std::vector<char> touched(kBytes, 1);
    EXPECT_EQ(touched[kBytes - 1], 1);
  }
  const std::int64_t after = peak_resident().value;
  EXPECT_GE(after, before);
  EXPECT_GE(after, static_cast<std::int64_t>(kBytes));
  EXPECT_LT(after, before + 2 * static_cast<std::int64_t>(kBytes));
}

}  // namespace
}  // namespace molen
