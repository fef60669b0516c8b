#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/command.h"

namespace kvasir::cli {

Progress::Progress(std::string what) : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::update(double done, double total, const std::string& detail) {
  if (!terminal_ || total <= 0) return;
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double share = std::clamp(done / total, 0.0, 1.0);
  // Work that will be over within a second is not worth a bar.
  if (!visible_ && (elapsed < 0.2 || elapsed / std::max(share, 1e-3) < 1.0)) return;
  if (visible_ && std::chrono::duration<double>(now - drawn_).count() < 0.1) return;
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(share * kWidth);
  const double left = share > 0 ? elapsed / share - elapsed : 0;
  std::fprintf(stderr, "\r%s [%.*s%*s] %3.0f%%  %s%s%.0f s left \033[K", what_.c_str(), filled,
               "##############################", kWidth - filled, "", share * 100, detail.c_str(),
               detail.empty() ? "" : "  ", left);
  std::fflush(stderr);
  visible_ = true;
  drawn_ = now;
}

void Progress::done() {
  if (visible_) std::fputs("\r\033[K", stderr);
  visible_ = false;
}

std::function<bool(size_t, size_t)> Progress::callback() {
  return [this](size_t done, size_t total) {
    update(static_cast<double>(done), static_cast<double>(total));
    return !interrupted();
  };
}

}  // namespace kvasir::cli
