// Saving: each rank writes its file, and rank 0 merges the results.
#include <algorithm>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/naming.h"
#include "checkpoint/safetensors.h"

namespace molen::checkpoint {
namespace {

void check_span(const Span& span) {
  const std::size_t rank = span.shape.size();
  MOLEN_CHECK(span.box.offsets.size() == rank && span.box.sizes.size() == rank &&
                  (span.box.elements() == 0 || intersection(span.box, whole_box(span.shape)) == span.box),
              "slice {} of tensor '{}' [{}]", text_of(span.box), span.tensor, fmt::join(span.shape, ", "));
  MOLEN_CHECK(span.data || span.read || span.box.elements() == 0, "slice of tensor '{}' without data", span.tensor);
}

// Writes one slice block by block; returns the blocks' hashes.
Json write_span(SafetensorsWriter& writer, const Span& span, std::vector<char>& buffer) {
  const std::int64_t size = size_of(span.dtype), step = kBlockBytes / size, elements = span.box.elements();
  const std::string entry = entry_name(span.tensor, span.shape, span.box);
  Json hashes = Json::array();
  for (std::int64_t at = 0; at < elements; at += step) {
    const std::int64_t count = std::min(step, elements - at);
    const char* block = nullptr;
    if (span.data) {
      block = static_cast<const char*>(span.data) + at * size;
    } else {
      buffer.resize(static_cast<std::size_t>(count * size));
      span.read(at, count, buffer.data());
      block = buffer.data();
    }
    hashes.push_back(xxh3_hex(block, static_cast<std::size_t>(count * size)));
    writer.write(entry, static_cast<std::uint64_t>(at * size), block, static_cast<std::uint64_t>(count * size));
  }
  return hashes;
}

// Writes this rank's file and, beside it, a fragment of the index. Rank 0 reads the fragment in the same save, so it
// need not survive a power cut.
void write_rank(const fs::path& folder, const std::vector<Span>& spans, int rank) {
  std::vector<TensorSpec> specs;
  for (const Span& span : spans) {
    check_span(span);
    // A box without elements has no entry in the file; rank 0 still learns of the tensor from the fragment below.
    if (span.box.elements() > 0)
      specs.push_back({entry_name(span.tensor, span.shape, span.box), span.dtype, span.box.sizes});
  }
  Json slices = Json::array();
  std::vector<char> buffer;
  std::optional<SafetensorsWriter> writer;
  if (!specs.empty())
    writer.emplace(folder / rank_file(rank), std::move(specs), WriterOptions{{{"format", "molen"}}, false});
  for (const Span& span : spans) {
    slices.push_back({{"tensor", span.tensor},
                      {"dtype", name_of(span.dtype)},
                      {"shape", span.shape},
                      {"offsets", span.box.offsets},
                      {"sizes", span.box.sizes},
                      {"xxh3", writer ? write_span(*writer, span, buffer) : Json::array()}});
  }
  if (writer) writer->finish();
  write_file_unsynced(folder / fragment_file(rank), slices.dump());
}

Json read_fragment(const fs::path& folder, int rank) {
  try {
    return read_json(folder / fragment_file(rank));
  } catch (const MissingFileError& error) {
    throw Error("checkpoint: what rank {} wrote is not seen by rank 0; is the directory on a shared file system? ({})",
                rank, error.what());
  }
}

// Builds the index from all ranks' fragments. Throws when the boxes do not cover a tensor exactly once: it must never
// become a checkpoint.
Index merge_fragments(const fs::path& folder, int ranks) {
  Index index;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Json& slice : read_fragment(folder, rank)) {
      const auto& name = slice.at("tensor").get_ref<const std::string&>();
      const DType dtype = dtype_from_name(slice.at("dtype").get<std::string>());
      const auto shape = slice.at("shape").get<std::vector<std::int64_t>>();
      const auto [at, added] = index.try_emplace(name, StoredTensor{dtype, shape, {}});
      if (at->second.dtype != dtype || at->second.shape != shape)
        throw Error("checkpoint: ranks disagree on dtype or shape of tensor '{}'", name);
      Box box{slice.at("offsets").get<std::vector<std::int64_t>>(), slice.at("sizes").get<std::vector<std::int64_t>>()};
      if (box.elements() == 0) continue;
      at->second.slices.push_back({rank, "", {std::move(box)}, slice.at("xxh3").get<std::vector<std::string>>()});
    }
  }
  for (auto& [name, tensor] : index) {
    if (const std::string problem = tiling_problem(tensor); !problem.empty())
      throw Error("checkpoint: the slices of tensor '{}' do not tile it: {}", name, problem);
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const Slice& a, const Slice& b) { return a.boxes[0].offsets < b.boxes[0].offsets; });
  }
  return index;
}

void write_state(const fs::path& folder, const SaveOptions& options) {
  const std::string index = print_index(merge_fragments(folder, options.ranks));
  write_file_atomic(folder / "index.json", index);
  Json attachments = Json::object();
  for (const auto& [name, content] : options.attachments) {
    MOLEN_CHECK(is_attachment_name(name), "attachment named '{}'", name);
    write_file_atomic(folder / name, content);
    attachments[name] = sha256_hex(content);
  }
  for (int rank = 0; rank < options.ranks; ++rank) remove_file(folder / fragment_file(rank));
  const Json state{{"format", "molen-checkpoint"},
                   {"format_version", kFormatVersion},
                   {"step", options.step},
                   {"ranks", options.ranks},
                   {"index_sha256", sha256_hex(index)},
                   {"state_sha256", sha256_hex(options.state.dump())},
                   {"attachments", attachments},
                   {"state", options.state}};
  const std::string text = state.dump(1) + "\n";
  MOLEN_CHECK(static_cast<std::int64_t>(text.size()) <= kMaxStateBytes, "a state of {} bytes", text.size());
  write_file_atomic(folder / "state.json", text);
}

void try_remove(const fs::path& partial) {
  try {
    remove_tree(partial);
  } catch (const Error&) {  // the original failure is the one to report
  }
}

void try_prune(const SaveOptions& options, const fs::path& saved) {
  try {
    prune(options.directory, saved, options.keep, options.still_owner);
  } catch (const IoError&) {
  }
}

// Runs one phase and keeps its failure until all ranks have agreed, so that no rank is left waiting.
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
  fs::path target = options.directory / step_name(options.step);
  const fs::path partial = options.directory / partial_name(options.step, options.token);
  const bool first = options.rank == 0;
  const auto require_owner = [&] {
    if (options.still_owner) options.still_owner();
  };
  Phases phases(options);
  try {
    phases.run([&] {
      if (!first) return;
      require_owner();
      make_directories(options.directory);
      remove_tree(partial);
      make_directories(partial);
    });
    phases.run([&] { write_rank(partial, spans, options.rank); });
    phases.run([&] {
      if (!first) return;
      write_state(partial, options);
      sync_directory(partial);
      require_owner();
      publish(partial, target);
    });
  } catch (const std::exception& error) {
    if (first) try_remove(partial);
    if (dynamic_cast<const Error*>(&error)) throw;
    throw Error("{}: checkpoint not saved: {}", target.string(), error.what());
  }
  // The checkpoint is saved. Old checkpoints that cannot be removed now do not make the save fail: the next save
  // removes them.
  if (first) try_prune(options, target);
  return target;
}

}  // namespace molen::checkpoint
