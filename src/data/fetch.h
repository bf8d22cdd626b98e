// A folder of downloaded Debian packages, made by `molen data fetch` and read by `molen data prepare`.
//
//   archives/*.deb      as downloaded; kept, because versions in the Debian archive change
//   root/<package>/     unpacked, never installed: no root rights, no maintainer scripts. For people to look at only:
//                       `prepare` unpacks the archives itself
//   fetch.json          package, version, architecture, archive and its SHA-256, time, licence and its evidence
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/manifest.h"

namespace molen::data {

struct FetchedPackage {
  std::string package, version, architecture;
  std::string archive;  // file name in archives/
  std::int64_t archive_bytes = 0;
  std::string archive_sha256;
  std::string checked;    // "signed package index", or "" when the index does not know this version
  std::string retrieved;  // UTC
  Licence licence;        // evidence: path below root/
  bool operator==(const FetchedPackage&) const = default;
};

struct FetchRecord {
  std::string set;
  std::vector<FetchedPackage> packages;
  bool operator==(const FetchRecord&) const = default;
};

// Parse fetch.json. Throw UsageError naming the file and the key.
FetchRecord parse_fetch_record(std::string_view text, std::string_view origin);
FetchRecord read_fetch_record(const fs::path& folder);
std::string format_fetch_record(const FetchRecord& record);

// Returns the licence of an unpacked package, read from its copyright file (which may be a link into another package of
// the folder). Returns "LicenseRef-unknown" when neither DEP-5 nor a review gives the licence.
Licence licence_of_package(const fs::path& folder, const std::string& package);

// Unpacks a package's files into `target` and replaces its previous content. Throws Error.
void unpack_archive(const fs::path& archive, const fs::path& target);

// Receives a line for a human about each step of `fetch_packages`.
using Progress = std::function<void(const std::string& line)>;

// Downloads missing archives, checks present ones (an altered archive is fetched again), unpacks them, and writes
// fetch.json. Throws Error when there is no network, no apt-get or no space; archives that were downloaded before stay.
FetchRecord fetch_packages(const std::string& set, const fs::path& folder, const Progress& progress);

}  // namespace molen::data
