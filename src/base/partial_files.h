// Files and folders that are not whole yet, so that a signal which ends the process takes them along, and a
// later process those of one that could not (kill -9, a crash).
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

namespace kvasir {

// Where what is written to a path goes.
struct WriteTarget {
  std::filesystem::path path;  // links are followed: the file that they name, there or not
  bool stream = false;         // it takes the bytes itself: there is no file to put in its place
};
// A character device, a pipe and a descriptor of the process (/dev/stdout) are streams; a file renamed onto
// them would replace them. Throws Error{not_found} for folders, block devices, sockets and endless links.
WriteTarget write_target(const std::filesystem::path& path);
// The same for what is not written from its beginning to its end: streams are refused as well.
std::filesystem::path write_target_file(const std::filesystem::path& path);

// From now to its destruction (or keep()), `path` goes with the process: remove_partial_files() unlinks it,
// or removes it if it is an empty folder. Registers nothing when 256 are registered already or the path is
// longer than 4095 bytes: then the owner's own destructor is all there is. Removes nothing itself.
class PartialFile {
 public:
  PartialFile() = default;
  explicit PartialFile(const std::filesystem::path& path) { watch(path); }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile() { keep(); }
  void watch(const std::filesystem::path& path);  // of one that was made without a path
  void keep();

 private:
  int slot_ = -1;
};

// Marks an open partial file or folder as in use until it is closed, for those who cannot see this process by
// its number: in other containers, or on other machines that share the disk. False when one of them took it
// for left and removed it first: then another must be made. Where files cannot be locked nobody removes
// what is not of a process of their own that is gone, and it is true.
[[nodiscard]] bool hold_partial(int descriptor);

// Makes and holds a file beside `target` that no other writer has, <target>.partial-<process>-<random>, and
// watches it. Returns its descriptor, open for writing, or -1 with errno set.
int make_partial(const std::filesystem::path& target, std::filesystem::path& made, PartialFile& watched);
// The same for a folder, <prefix><process>-<random>, which is not watched. The descriptor is of the folder.
int make_partial_folder(const std::string& prefix, std::filesystem::path& made);

// Removes what dead processes left in `folder`: files and folders called `prefix` and the number of a process
// (then nothing, or "-" and more), of this user, whose process is gone and which nobody holds. What cannot be
// removed stays, without an error.
void remove_dead_partials(const std::filesystem::path& folder, std::string_view prefix);
// Those called <target>.partial-<number>.
void remove_dead_partials_of(const std::filesystem::path& target);

// Async-signal-safe; the last registered goes first.
void remove_partial_files();

// Those of the signals that the process was not started to ignore (nohup, a shell's background job).
void handle_signals(std::initializer_list<int> signals, void (*handler)(int));

// SIGINT, SIGTERM and SIGHUP remove partial files and end the process with 128 + the signal.
void install_ending_signals();

}  // namespace kvasir
