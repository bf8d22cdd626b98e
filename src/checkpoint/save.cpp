// Saving: what each rank writes, and what rank 0 makes of it.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/naming.h"
#include "checkpoint/safetensors.h"

namespace molen::checkpoint {
namespace {

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

bool is_whole(const Span& span) {
  return span.offset == 0 && span.count == elements_of(span.shape);
}

std::string entry_name(const Span& span) {
  return is_whole(span) ? span.tensor : fmt::format("{}@{}", span.tensor, span.offset);
}

void check_span(const Span& span) {
  const std::int64_t elements = elements_of(span.shape);
  MOLEN_CHECK(span.offset >= 0 && span.count >= 0 && span.offset <= elements && span.count <= elements - span.offset,
              "slice [{}, +{}) of tensor '{}' with {} elements", span.offset, span.count, span.tensor, elements);
  MOLEN_CHECK(span.data || span.read || span.count == 0, "slice of tensor '{}' without data", span.tensor);
}

// Writes one slice block by block; returns the blocks' hashes.
Json write_span(SafetensorsWriter& writer, const Span& span, std::vector<char>& buffer) {
  const std::int64_t size = size_of(span.dtype), step = kBlockBytes / size;
  const std::string entry = entry_name(span);
  Json hashes = Json::array();
  for (std::int64_t at = 0; at < span.count; at += step) {
    const std::int64_t count = std::min(step, span.count - at);
    const char* block = static_cast<const char*>(span.data) + at * size;
    if (!span.data) {
      buffer.resize(static_cast<std::size_t>(count * size));
      span.read(at, count, buffer.data());
      block = buffer.data();
    }
    hashes.push_back(xxh3_hex(block, static_cast<std::size_t>(count * size)));
    writer.write(entry, static_cast<std::uint64_t>(at * size), block, static_cast<std::uint64_t>(count * size));
  }
  return hashes;
}

// This rank's file, and beside it what rank 0 needs to know of it.
void write_rank(const fs::path& folder, const std::vector<Span>& spans, int rank) {
  const std::string file = rank_file(rank);
  std::vector<TensorSpec> specs;
  for (const Span& span : spans) {
    check_span(span);
    // A tensor without elements has no slice to hold; rank 0 still learns its shape from the entry below.
    if (span.count > 0) {
      specs.push_back(
          {entry_name(span), span.dtype, is_whole(span) ? span.shape : std::vector<std::int64_t>{span.count}});
    }
  }
  Json slices = Json::array();
  std::vector<char> buffer;
  const bool any = !specs.empty();
  std::optional<SafetensorsWriter> writer;
  if (any) writer.emplace(folder / file, std::move(specs), WriterOptions{{{"format", "molen"}}, false});
  for (const Span& span : spans) {
    if (span.count == 0 && elements_of(span.shape) > 0) continue;
    slices.push_back({{"tensor", span.tensor},
                      {"dtype", name_of(span.dtype)},
                      {"shape", span.shape},
                      {"entry", entry_name(span)},
                      {"offset", span.offset},
                      {"count", span.count},
                      {"xxh3", any ? write_span(*writer, span, buffer) : Json::array()}});
  }
  if (writer) writer->finish();
  write_file_atomic(folder / fragment_file(rank), slices.dump());
}

Json read_fragment(const fs::path& folder, int rank) {
  try {
    return read_json(folder / fragment_file(rank));
  } catch (const UsageError& error) {
    throw Error("checkpoint: what rank {} wrote is not seen by rank 0; is the directory on a shared file system? ({})",
                rank, error.what());
  }
}

// The index from all ranks' fragments. A tensor that is not covered exactly once must never become a checkpoint.
Json merge_fragments(const fs::path& folder, int ranks) {
  std::map<std::string, Json> tensors;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Json& slice : read_fragment(folder, rank)) {
      const auto& name = slice.at("tensor").get_ref<const std::string&>();
      Json& tensor = tensors[name];
      if (tensor.is_null())
        tensor = {{"dtype", slice.at("dtype")}, {"shape", slice.at("shape")}, {"slices", Json::array()}};
      if (tensor["dtype"] != slice.at("dtype") || tensor["shape"] != slice.at("shape")) {
        throw Error("checkpoint: ranks disagree on dtype or shape of tensor '{}'", name);
      }
      if (slice.at("count") == 0) continue;
      tensor["slices"].push_back({{"file", rank_file(rank)},
                                  {"entry", slice.at("entry")},
                                  {"offset", slice.at("offset")},
                                  {"count", slice.at("count")},
                                  {"xxh3", slice.at("xxh3")}});
    }
  }
  Json sorted = Json::object();
  for (auto& [name, tensor] : tensors) {
    auto& slices = tensor["slices"].get_ref<Json::array_t&>();
    std::sort(slices.begin(), slices.end(), [](const Json& a, const Json& b) { return a["offset"] < b["offset"]; });
    std::int64_t position = 0;
    for (const Json& slice : slices) {
      if (slice["offset"] != position) {
        throw Error(
            "checkpoint: the slices of tensor '{}' do not tile it: expected element {}, the next slice begins at {}",
            name, position, slice["offset"].get<std::int64_t>());
      }
      position += slice["count"].get<std::int64_t>();
    }
    const std::int64_t elements = elements_of(tensor["shape"].get<std::vector<std::int64_t>>());
    if (position != elements)
      throw Error("checkpoint: tensor '{}' is saved to element {} of {}", name, position, elements);
    sorted.get_ref<Json::object_t&>().emplace_back(name, std::move(tensor));
  }
  return sorted;
}

void write_state(const fs::path& folder, const SaveOptions& options) {
  const std::string index = Json{{"format", "molen-checkpoint"},
                                 {"format_version", kFormatVersion},
                                 {"block_bytes", kBlockBytes},
                                 {"tensors", merge_fragments(folder, options.ranks)}}
                                .dump();
  write_file_atomic(folder / "index.json", index);
  Json attachments = Json::object();
  for (const auto& [name, content] : options.attachments) {
    MOLEN_CHECK(is_attachment_name(name), "attachment named '{}'", name);
    write_file_atomic(folder / name, content);
    attachments[name] = sha256_hex(content);
  }
  for (int rank = 0; rank < options.ranks; ++rank) fs::remove(folder / fragment_file(rank));
  const Json state{{"format", "molen-checkpoint"},
                   {"format_version", kFormatVersion},
                   {"step", options.step},
                   {"ranks", options.ranks},
                   {"index_sha256", sha256_hex(index)},
                   {"state_sha256", sha256_hex(options.state.dump())},
                   {"attachments", attachments},
                   {"state", options.state}};
  write_file_atomic(folder / "state.json", state.dump(1) + "\n");
}

// Puts `from` in the place of `to` at once, also where `to` exists: then the old one is left under `from` and removed.
void replace_directory(const fs::path& from, const fs::path& to) {
  if (!fs::exists(to)) return fs::rename(from, to);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    // A file system without exchange: for a moment only the set-aside name holds the old one.
    const fs::path aside = to.string() + ".removing";
    fs::remove_all(aside);
    fs::rename(to, aside);
    fs::rename(from, to);
    fs::remove_all(aside);
    return;
  }
  fs::remove_all(from);
}

// Removes the oldest beyond `keep` complete ones, and what interrupted saves and removals left. The checkpoint just
// saved is complete and the newest kept, so at least one always stays.
void prune(const fs::path& directory, const fs::path& saved, int keep) {
  std::error_code error;
  std::vector<fs::path> leftovers, complete;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (is_leftover(it->path().filename().string())) leftovers.push_back(it->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
  if (keep <= 0) return;
  for (const Listed& listed : list(directory))
    if (listed.problem.empty() && listed.path != saved) complete.push_back(listed.path);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) <= complete.size(); ++i) {
    // Renamed first: a removal cut short leaves nothing that looks like a checkpoint.
    const fs::path aside = complete[i].string() + ".removing";
    fs::rename(complete[i], aside, error);
    if (!error) fs::remove_all(aside, error);
  }
}

// Runs one phase; its failure is kept until all ranks have agreed, so that none is left waiting.
class Phases {
 public:
  explicit Phases(const SaveOptions& options) : agree_(options.agree) {
    MOLEN_CHECK(agree_ || options.ranks == 1, "several ranks need a way to agree");
  }
  template <class F>
  void run(F&& phase) {
    std::exception_ptr failure;
    try {
      phase();
    } catch (...) {
      failure = std::current_exception();
    }
    const bool all = agree_ ? agree_(!failure) : !failure;
    if (failure) std::rethrow_exception(failure);
    if (!all) throw Error("checkpoint: not saved, because another rank failed to write its part");
  }

 private:
  const Agree& agree_;
};

}  // namespace

fs::path save(const std::vector<Span>& spans, const SaveOptions& options) {
  const fs::path target = options.directory / step_name(options.step);
  const fs::path partial = target.string() + ".partial";
  const bool first = options.rank == 0;
  Phases phases(options);
  try {
    phases.run([&] {
      if (!first) return;
      fs::create_directories(options.directory);
      fs::remove_all(partial);
      fs::create_directory(partial);
    });
    phases.run([&] { write_rank(partial, spans, options.rank); });
    phases.run([&] {
      if (!first) return;
      write_state(partial, options);
      sync_directory(partial);
      replace_directory(partial, target);
      sync_directory(options.directory);
    });
  } catch (const std::exception& error) {
    std::error_code ignored;
    if (first) fs::remove_all(partial, ignored);
    if (dynamic_cast<const Error*>(&error)) throw;
    throw Error("{}: checkpoint not saved: {}", target.string(), error.what());
  }
  if (first) prune(options.directory, target, options.keep);
  return target;
}

}  // namespace molen::checkpoint
