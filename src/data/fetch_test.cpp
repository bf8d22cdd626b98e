// Tests `molen data fetch` without a network: apt-get and apt-cache are scripts that serve packages made by the test.
#include "data/fetch.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/test_filesystem.h"
#include "base/test_golden.h"
#include "data/commands.h"
#include "data/process.h"
#include "data/recipes.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

class Fetch : public ::testing::Test {
 protected:
  Fetch() : path_(::getenv("PATH")) {
    for (const char* folder : {"bin", "debs", "told"}) fs::create_directories(at(folder));
    // These stand-ins offer a package when its archive is in debs/, and the hashes in told/ as the package index.
    script("apt-get", "echo \"$*\" >> " + at("calls").string() +
                          "\n[ -e fail ] && { echo 'E: '$(/bin/cat fail); exit 100; }\n"
                          "if [ \"$1\" = update ]; then\n"
                          "  [ -e ../../no-update ] && { echo 'E: one'; echo 'E: two'; echo 'E: three'; exit 100; }\n"
                          "  /bin/mv ../../later/* ../../debs/; exit 0\nfi\n"
                          "for p; do :; done\n"
                          "/bin/cp ../../debs/${p}_* . 2> /dev/null || { echo \"E: Unable to locate package $p\"; exit "
                          "100; }\n");
    script("apt-cache", "[ \"$1\" = show ] || exit 1\n/bin/cat " + at("told").string() + "/$2\n");
    ::setenv("PATH", (at("bin").string() + ":" + path_).c_str(), 1);
  }
  ~Fetch() override { ::setenv("PATH", path_.c_str(), 1); }

  fs::path at(const std::string& name) const { return folder_.path() / name; }
  std::string shown(std::string text) const {
    const std::string path = folder_.path().string();
    for (auto found = text.find(path); found != std::string::npos; found = text.find(path))
      text.replace(found, path.size(), "DIR");
    return text;
  }
  void script(const std::string& name, const std::string& body) const {
    write_file_atomic(at("bin") / name, "#!/bin/sh\n" + body);
    fs::permissions(at("bin") / name, fs::perms::owner_all);
  }
  void build(const std::string& package, const std::string& version, const std::string& folder = "debs",
             const std::string& named = "") const {
    const fs::path tree = at("tree") / package;
    fs::create_directories(tree / "DEBIAN");
    fs::create_directories(tree / "usr/share/doc" / package);
    write_file_atomic(tree / "usr/share/doc" / package / "copyright",
                      "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: "
                      "*\nCopyright: X\nLicense: GPL-2+\n");
    write_file_atomic(tree / "DEBIAN/control", "Package: " + package + "\nVersion: " + version +
                                                   "\nArchitecture: all\nMaintainer: X <x@example.org>\nDescription: "
                                                   "x\n");
    fs::create_directories(at(folder));
    const fs::path archive = at(folder) / ((named.empty() ? package : named) + "_" + version + "_all.deb");
    const ProcessResult built =
        run_process({"dpkg-deb", "-Znone", "--root-owner-group", "-b", tree.string(), archive.string()}, "/");
    ASSERT_EQ(built.status, 0) << built.output;
  }
  // Builds all packages of the set, once per process.
  void build_all(const std::string& but = "") const {
    static const TestFolder made;
    for (const std::string& package : package_set("demo").packages) {
      const std::string archive = package + "_1.0_all.deb";
      if (!fs::exists(made.path() / archive)) {
        build(package, "1.0");
        fs::copy(at("debs") / archive, made.path());
      }
      if (package == but)
        fs::remove(at("debs") / archive);
      else if (!fs::exists(at("debs") / archive))
        fs::copy(made.path() / archive, at("debs"));
    }
  }
  // Returns the progress lines, then the error or the end.
  std::vector<std::string> fetch() const {
    std::vector<std::string> steps;
    try {
      fetch_packages("demo", at("f"), [&](const std::string& line) { steps.push_back(shown(line)); });
    } catch (const Error& error) {
      steps.push_back(shown(error.what()));
    }
    return steps;
  }
  std::string path_;
  TestFolder folder_;

 private:
  UnsyncedFileSystem unsynced_;
  FileSystemOverride instead_{unsynced_};
};

using Lines = std::vector<std::string>;
const std::string kNote = " 1.0 is in no signed package index here, so nothing shows that it comes from Debian";

TEST_F(Fetch, DownloadsChecksAndRemembers) {
  build_all();
  const auto packages = package_set("demo").packages;
  const auto archive = [&](const std::string& package) { return package + "_1.0_all.deb"; };
  for (std::size_t i = 1; i < packages.size(); ++i)
    write_file_atomic(at("told") / (packages[i] + "=1.0"),
                      "Package: " + packages[i] + "\nSHA256: " + sha256_file(at("debs") / archive(packages[i])) + "\n");
  Lines expected{"fetching " + packages[0], "note: " + packages[0] + kNote};
  for (std::size_t i = 1; i < packages.size(); ++i) expected.push_back("fetching " + packages[i]);
  EXPECT_EQ(fetch(), expected);
  EXPECT_EQ(read_file(at("calls")).substr(0, 59), "download -q -o Acquire::Retries=2 libreoffice-help-nl\ndownl");
  const FetchRecord record = read_fetch_record(at("f"));
  EXPECT_EQ(record.set, "demo");
  ASSERT_EQ(record.packages.size(), packages.size());
  for (std::size_t i = 0; i < packages.size(); ++i) {
    const FetchedPackage& p = record.packages[i];
    EXPECT_EQ(p.package, packages[i]);
    EXPECT_EQ(p.version, "1.0");
    EXPECT_EQ(p.architecture, "all");
    EXPECT_EQ(p.archive, archive(packages[i]));
    EXPECT_EQ(p.archive_bytes, static_cast<std::int64_t>(fs::file_size(at("debs") / p.archive)));
    EXPECT_EQ(p.archive_sha256, sha256_file(at("debs") / p.archive));
    EXPECT_EQ(p.checked, i == 0 ? "" : "signed package index");
    EXPECT_EQ(p.licence.spdx, "GPL-2.0-or-later");
    EXPECT_EQ(p.licence.evidence, packages[i] + "/usr/share/doc/" + packages[i] + "/copyright");
    EXPECT_TRUE(fs::exists(at("f/root") / p.licence.evidence));
  }
  // A second fetch keeps the archives.
  fs::remove(at("calls"));
  EXPECT_EQ(fetch(), Lines{"note: " + packages[0] + kNote});
  EXPECT_FALSE(fs::exists(at("calls")));
  EXPECT_EQ(read_fetch_record(at("f")), record);
  std::ostringstream out, json;
  EXPECT_EQ(fetch_command({"demo", at("f"), false, true}, json, {}), 0);
  EXPECT_EQ(json.str(), read_file(at("f/fetch.json")));
  EXPECT_EQ(fetch_command({"demo", at("f"), false, false}, out, {}), 0);
  const std::string start =
      "package                 version  licence           evidence        checked by             bytes\n"
      "libreoffice-help-nl         1.0  GPL-2.0-or-later  DEP-5 Files: *  nothing               ";
  EXPECT_EQ(out.str().substr(0, start.size()), start);
  EXPECT_NE(
      out.str().find("\nmanpages-nl                 1.0  GPL-2.0-or-later  DEP-5 Files: *  signed package index  "),
      std::string::npos)
      << out.str();
  // One altered archive and one missing archive.
  write_file_atomic(at("f/archives") / archive(packages[1]), "altered");
  fs::remove(at("f/archives") / archive(packages[2]));
  EXPECT_EQ(fetch(), (Lines{"note: " + packages[0] + kNote, packages[1] + ": its archive was altered, fetching it anew",
                            "fetching " + packages[1], "fetching " + packages[2]}));
  EXPECT_EQ(sha256_file(at("f/archives") / archive(packages[1])), record.packages[1].archive_sha256);
}

// Fetch takes archives that are already in the folder, the newest by name, and keeps the entries of an older record
// whose archives still exist.
TEST_F(Fetch, WhatLiesThereIsTaken) {
  build_all();
  fs::create_directories(at("f/archives"));
  for (const auto& entry : fs::directory_iterator(at("debs"))) fs::copy(entry, at("f/archives"));
  build("manpages-nl", "2.0", "f/archives");
  const Lines steps = fetch();
  EXPECT_EQ(std::count(
                steps.begin(), steps.end(),
                "note: manpages-nl 2.0 is in no signed package index here, so nothing shows that it comes from Debian"),
            1);
  EXPECT_FALSE(fs::exists(at("calls")));
  FetchRecord record = read_fetch_record(at("f"));
  FetchedPackage other = record.packages[0], gone = record.packages[0];
  other.package = "other";
  gone.package = "gone";
  gone.archive = "gone.deb";
  record.packages.push_back(other);
  record.packages.push_back(gone);
  write_file_atomic(at("f/fetch.json"), format_fetch_record(record));
  fetch();
  record.packages.pop_back();
  EXPECT_EQ(read_fetch_record(at("f")), record);
}

TEST_F(Fetch, AnIndexThatIsOldIsUpdatedOnce) {
  build_all("libreoffice-help-nl");
  build("libreoffice-help-nl", "1.0", "later");
  const Lines steps = fetch();
  ASSERT_GE(steps.size(), 3u);
  EXPECT_EQ(
      Lines(steps.begin(), steps.begin() + 3),
      (Lines{"fetching libreoffice-help-nl", "the package index lacks libreoffice-help-nl or is old: apt-get update",
             "note: libreoffice-help-nl" + kNote}));
  EXPECT_EQ(read_file(at("calls")).substr(0, 72),
            "download -q -o Acquire::Retries=2 libreoffice-help-nl\nupdate -q\ndownload");
  EXPECT_EQ(read_fetch_record(at("f")).packages.size(), 7u);
}

TEST_F(Fetch, FailuresSayWhatToDo) {
  write_file_atomic(at("no-update"), "");
  EXPECT_EQ(fetch(), (Lines{"fetching libreoffice-help-nl",
                            "the package index lacks libreoffice-help-nl or is old: apt-get update",
                            "libreoffice-help-nl: not in the package index, and apt-get update failed (E: two / E: "
                            "three): run `sudo apt-get update`, or put its .deb file into DIR/f/archives and run this "
                            "again"}));
  EXPECT_FALSE(fs::exists(at("f/fetch.json")));

  // The archive holds another package.
  build("manpages-nl", "1.0", "debs", "libreoffice-help-nl");
  EXPECT_EQ(fetch().back(),
            "DIR/f/archives/libreoffice-help-nl_1.0_all.deb: holds package 'manpages-nl', not 'libreoffice-help-nl'");
  // The file is not a package.
  write_file_atomic(at("f/archives/libreoffice-help-nl_1.0_all.deb"), "no archive");
  const std::string unreadable = fetch().back();
  EXPECT_EQ(unreadable.find("DIR/f/archives/libreoffice-help-nl_1.0_all.deb: not a readable Debian package: dpkg-deb: "
                            "error: "),
            0u)
      << unreadable;
  // The archive differs from the hash in the index.
  fs::remove_all(at("f"));
  fs::remove_all(at("debs"));
  build("libreoffice-help-nl", "1.0");
  write_file_atomic(at("told/libreoffice-help-nl=1.0"), "SHA256: abc\n");
  EXPECT_EQ(fetch().back(), "DIR/f/archives/libreoffice-help-nl_1.0_all.deb: its SHA-256 " +
                                sha256_file(at("debs/libreoffice-help-nl_1.0_all.deb")) +
                                " is not the one of the signed package index, abc: delete it and run this again");
}

TEST_F(Fetch, WithoutItsPrograms) {
  ::setenv("PATH", at("none").c_str(), 1);
  EXPECT_EQ(fetch(), (Lines{"fetching libreoffice-help-nl",
                            "apt-get is not installed: put the .deb files of the set into DIR/f/archives and run this "
                            "again"}));
  write_file_atomic(at("f/archives/libreoffice-help-nl_1.0_all.deb"), "x");
  const std::string no_dpkg = "dpkg-deb is not installed: packages can only be unpacked on Debian and its kin";
  EXPECT_EQ(fetch(), Lines{no_dpkg});
  try {
    unpack_archive(at("f/archives/libreoffice-help-nl_1.0_all.deb"), at("f/root/x"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), no_dpkg);
  }
  ::setenv("PATH", path_.c_str(), 1);
  try {
    unpack_archive(at("f/archives/libreoffice-help-nl_1.0_all.deb"), at("f/root/x"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(shown(error.what()).find("DIR/f/archives/libreoffice-help-nl_1.0_all.deb: cannot be unpacked: dpkg-deb"),
              0u)
        << error.what();
  }
  EXPECT_FALSE(fs::exists(at("f/root/x")));
}

TEST(FetchRecord, DamageIsNamed) {
  const GoldenMessages golden;
  const auto reason = [](const std::string& text) -> std::string {
    try {
      parse_fetch_record(text, "r.json");
    } catch (const UsageError& error) {
      return GoldenMessages::note(error.what());
    }
    return "";
  };
  const std::string hash(64, 'a');
  const FetchRecord good{
      "demo", {{"pkg", "1.0", "all", "pkg.deb", 5, hash, "", "2026-01-01T00:00:00Z", {"MIT", "", "", "", "r"}}}};
  EXPECT_EQ(reason(format_fetch_record(good)), "");
  const auto changed = [&](auto&& change) {
    Json json = Json::parse(format_fetch_record(good));
    change(json);
    return reason(json.dump());
  };
  EXPECT_EQ(changed([](Json& j) { j["format"] = "other"; }), "r.json: not a molen-fetch record of version 1");
  EXPECT_EQ(changed([](Json& j) { j["version"] = 2; }), "r.json: not a molen-fetch record of version 1");
  EXPECT_EQ(changed([](Json& j) { j["packages"] = Json::object(); }), "r.json: 'packages' is not a list");
  for (const std::string name : {"", "..", "a/b", "-x", "a b", "a\nb"})
    EXPECT_EQ(changed([&](Json& j) { j["packages"][0]["package"] = name; }),
              "r.json: packages[0]: '" + name + "' is not a package name");
  EXPECT_EQ(changed([&](Json& j) { j["packages"][0]["package"] = std::string(99, 'a'); }), "");
  EXPECT_NE(changed([&](Json& j) { j["packages"][0]["package"] = std::string(100, 'a'); }), "");
  EXPECT_EQ(changed([&](Json& j) { j["packages"][0]["package"] = "lib+x-1.0"; }), "");
  for (const std::string name : {"", ".deb", "a/b.deb", "../b.deb"})
    EXPECT_EQ(changed([&](Json& j) { j["packages"][0]["archive"] = name; }),
              "r.json: packages[0]: '" + name + "' is not a plain file name");
  EXPECT_EQ(changed([&](Json& j) { j["packages"][0]["archive_bytes"] = -1; }).find("r.json: packages[0]: "), 0u);
}

}  // namespace
}  // namespace molen::data
