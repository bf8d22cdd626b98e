// A folder of downloaded Debian packages: what `molen data fetch` makes and `molen data prepare` reads.
//
//   archives/*.deb      as downloaded; versions move in the archive, so these are kept
//   root/<package>/     unpacked, never installed: no root rights, no maintainer scripts. To look at: `prepare` unpacks
//                       the archives itself
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
  std::string checked;    // "signed package index", or "" where the index does not know this version
  std::string retrieved;  // UTC
  Licence licence;        // evidence: path below root/
  bool operator==(const FetchedPackage&) const = default;
};

struct FetchRecord {
  std::string set;
  std::vector<FetchedPackage> packages;
  bool operator==(const FetchRecord&) const = default;
};

// Throw UsageError naming the file and the key.
FetchRecord parse_fetch_record(std::string_view text, std::string_view origin);
FetchRecord read_fetch_record(const fs::path& folder);
std::string format_fetch_record(const FetchRecord& record);

// The licence of an unpacked package, from its copyright file (which may be a link into another package of the folder).
// "LicenseRef-unknown" where neither DEP-5 nor a review answers.
Licence licence_of_package(const fs::path& folder, const std::string& package);

// Unpacks a package's files into `target`, which takes the place of what stood there. Throws Error.
void unpack_archive(const fs::path& archive, const fs::path& target);

// What a step of `fetch_packages` says to a human.
using Progress = std::function<void(const std::string& line)>;

// Downloads what is missing, checks what is there (an altered archive is fetched anew), unpacks, and writes fetch.json.
// Throws Error: no network, no apt-get, no space; what was downloaded before stays.
FetchRecord fetch_packages(const std::string& set, const fs::path& folder, const Progress& progress);

}  // namespace molen::data
